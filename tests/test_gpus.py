"""Every name that people type or NVML prints leads to its board; a wrong one is answered with near names."""

import pytest

from dstune.catalog import gpus, load
from dstune.errors import DstuneError

TYPED = {
    "RTX 3090": "rtx-3090",
    "rtx3090": "rtx-3090",
    "A100 SXM 80GB": "a100-sxm4-80gb",
    "4060 ti 16g": "rtx-4060-ti-16gb",
    "RTX 4060 Ti": "rtx-4060-ti-8gb",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "Tesla T4": "t4",
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "a100-sxm4-40gb",
    "H100 80GB HBM3": "h100-sxm",
    "GB10 (DGX Spark)": "gb10-dgx-spark",
    "RTX 4070 Laptop 8GB": "rtx-4070-laptop",
    "Jetson AGX Orin 64GB": "jetson-agx-orin-64gb",
    "5090": "rtx-5090",
}


@pytest.mark.parametrize(("typed", "board"), TYPED.items())
def test_typed_name(typed, board):
    assert gpus.find(typed).id == board


def test_every_spelling_of_the_recipes_leads_home():
    for file in load("gpus").values():
        for row in file["gpu"]:
            for spelling in (row["id"], *row.get("aliases", ())):
                assert gpus.find(spelling).id == row["id"], spelling


def test_memory_tells_boards_of_one_name_apart():
    assert gpus.find("NVIDIA GeForce RTX 4060 Ti", 8188).id == "rtx-4060-ti-8gb"
    assert gpus.find("NVIDIA GeForce RTX 4060 Ti", 16380).id == "rtx-4060-ti-16gb"
    modded = gpus.find("NVIDIA GeForce RTX 4090", 49140)
    assert (modded.id, modded.memory_mib) == ("rtx-4090-48gb", 49140)


def test_close_miss_suggests():
    with pytest.raises(DstuneError) as caught:
        gpus.find("RTX 3099")
    assert "RTX 3090" in caught.value.why
    assert "rtx-3090" in caught.value.next


def test_a_size_that_does_not_exist_is_said():
    with pytest.raises(DstuneError) as caught:
        gpus.find("RTX 3090 48GB")
    assert "24 GB" in caught.value.why


def test_every_board_has_a_source_and_plausible_numbers():
    for board in gpus.rows():
        assert board.sources, board.id
        assert 50 < board.bandwidth_gb_s < 10_000, board.id
        assert 0.85 < board.memory_mib / 1024 / board.memory_gib <= 1.01, board.id
        assert board.cc == (0, 0) or 3 <= board.cc[0] <= 12, board.id
