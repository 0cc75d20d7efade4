#!/bin/sh
exec uvicorn gateway:app --host 0.0.0.0 --port 9000 --workers 4
