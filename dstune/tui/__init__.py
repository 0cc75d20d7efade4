"""The monitor: one worker samples, one message carries the sample, panels only draw."""
