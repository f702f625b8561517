from ray_diloco.master.shelf import Shelf


def test_the_newest_folder_that_nobody_needs_is_the_spare_one(tmp_path):
    shelf = Shelf(tmp_path / "globals")
    first, second, third = (shelf.new() for _ in range(3))
    shelf.keep_only([third / "latest.safetensors"])
    assert not first.exists()
    assert shelf.take_spare() == second
    assert shelf.take_spare() is None
    fourth = shelf.new()
    shelf.keep_only([fourth / "latest.safetensors"])
    assert shelf.take_spare() == third
    assert not second.exists()


def test_a_shelf_whose_folders_are_all_needed_has_no_spare_one(tmp_path):
    shelf = Shelf(tmp_path / "globals")
    shelf.keep_only([shelf.new() / "latest.safetensors"])
    assert shelf.take_spare() is None
