from ray_diloco.protocol.seeds import seed_of, seeded


def test_the_same_words_give_the_same_numbers_everywhere():
    assert seed_of(0, "n1", "data") == 7054641926486099035
    assert seeded(0, "n1", "data").random() == seeded(0, "n1", "data").random()


def test_seed_node_and_purpose_each_make_a_difference():
    words = [(0, "n1", "data"), (1, "n1", "data"), (0, "n2", "data"), (0, "n1", "init")]
    assert len({seed_of(*w) for w in words}) == len(words)
    assert seed_of(1, "1", "a") != seed_of(11, "", "a")
