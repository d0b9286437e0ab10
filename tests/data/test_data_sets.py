"""Data sets of PyTorch, Hugging Face and pandas, whole or one per client, as federations."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation

datasets = pytest.importorskip("datasets")

TEXTS = ["good and fine", "bad", "fine", "very very bad indeed", "good", "so bad"]
RNG = np.random.default_rng(0)


def ids(text):
    """A tokenizer: any function from a text to its ids."""
    return [1 + sum(word.encode()) % 50 for word in text.split()]


def reviews(rows=12):
    return datasets.Dataset.from_dict(
        {
            "text": [TEXTS[i % 6] for i in range(rows)],
            "stars": [float(i % 5) for i in range(rows)],
            "shop": [i % 2 for i in range(rows)],
            "label": [i % 2 for i in range(rows)],
        },
        features=datasets.Features(
            {
                "text": datasets.Value("string"),
                "stars": datasets.Value("float32"),
                "shop": datasets.ClassLabel(names=["north", "south"]),
                "label": datasets.ClassLabel(names=["praise", "blame"]),
            }
        ),
    )


# -- Hugging Face ---------------------------------------------------------------------------------
def test_a_dataset_dict_with_a_tokenizer_and_natural_clients():
    whole = datasets.DatasetDict({"train": reviews(12), "test": reviews(4), "validation": reviews(6)})
    fed = Federation.from_dataset(whole, "natural(shop)", inputs="text", encode=ids)
    assert fed.class_names == ("praise", "blame")
    assert (fed.client_names, fed.sizes, fed.partition) == (("north", "south"), (6, 6), "natural(shop)")
    assert fed.input_shape == {"x": (4,), "mask": (4,)}
    assert fed.train.x["x"].dtype == torch.int64
    assert fed.train.x["x"][1].tolist() == [*ids("bad"), 0, 0, 0]
    assert fed.train.x["mask"][0].tolist() == [True, True, True, False]
    assert [rows.tolist() for rows in fed.client_test] == [[0, 2], [1, 3]]  # each client's own test samples
    other = Federation.from_dataset(whole, clients=3, test="validation", inputs="text", encode="hashing(32)")
    assert (len(other.test.y), other.input_shape, other.client_test) == (6, (32,), None)


def test_several_columns_of_a_dataset():
    fed = Federation.from_dataset(reviews(), inputs=["text", "stars"], encode=ids, clients=2, test=0.25)
    assert fed.input_shape == {"text": (4,), "stars": (1,), "text_mask": (4,)}
    ready = reviews().map(lambda row: {"input_ids": ids(row["text"]), "attention_mask": [1] * len(ids(row["text"]))})
    fed = Federation.from_dataset(ready, inputs=["input_ids", "attention_mask"], clients=2)
    assert fed.input_shape == {"input_ids": (4,), "attention_mask": (4,)}
    assert fed.train.x["attention_mask"][1].tolist() == [1, 0, 0, 0]


def test_a_tokenizer_that_returns_several_entries():
    def tokenizer(text):
        return {
            "input_ids": torch.tensor([ids(text)]),
            "attention_mask": torch.ones(1, len(ids(text)), dtype=torch.long),
        }

    fed = Federation.from_dataset(reviews(), inputs="text", encode=tokenizer, clients=2)
    assert fed.input_shape == {"input_ids": (4,), "attention_mask": (4,)}
    assert fed.train.x["attention_mask"].sum(1).tolist()[:4] == [3, 1, 1, 4]
    with pytest.raises(BadInput, match=r"there are other inputs beside 'text': tokenize before"):
        Federation.from_dataset(reviews(), inputs=["text", "stars"], encode=tokenizer)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, r"the data has the columns text, stars, shop, label: say which are inputs"),
        ({"inputs": "txt", "encode": ids}, "the data has no column 'txt'; it has text, stars, shop, label"),
        ({"inputs": "text"}, r"'text' holds texts: give encode=tokenizer"),
        ({"inputs": "text", "encode": "hashng"}, "did you mean 'hashing'"),
        ({"inputs": "text", "encode": lambda text: text}, "returns str for text 0; it must return the ids"),
        ({"inputs": "text", "encode": lambda text: text.no}, "encode: the function raised AttributeError"),
        ({"inputs": "stars", "label": "y"}, "no column 'y'"),
        ({"inputs": "text", "encode": ids, "partition": "natural(town)"}, "no column 'town'"),
        ({"inputs": "text", "encode": ids, "test": "stars"}, "'stars' must hold 0 for training and 1 for test"),
        ({"inputs": "text", "encode": ids, "categories": {"shop": [0]}}, "categories: these are for data frames"),
    ],
)
def test_columns_that_do_not_fit_are_refused(settings, says):
    with pytest.raises(BadInput, match=says):
        Federation.from_dataset(reviews(), **settings)


def test_parts_that_are_not_there():
    with pytest.raises(BadInput, match="is a dictionary of test: it needs a part 'train'"):
        Federation.from_dataset({"test": reviews()}, inputs="text", encode=ids)
    with pytest.raises(BadInput, match="test: the data has no part 'dev'; it has train"):
        Federation.from_dataset({"train": reviews()}, inputs="text", encode=ids, test="dev")


def test_a_stream_is_read_to_its_end():
    fed = Federation.from_dataset(reviews().to_iterable_dataset(), "natural(shop)", inputs="text", encode=ids)
    assert (fed.sizes, fed.input_shape) == ((6, 6), {"x": (4,), "mask": (4,)})


# -- PyTorch --------------------------------------------------------------------------------------
class Sentences(Dataset):
    """A data set of dictionaries whose samples differ in length."""

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return {"words": torch.tensor(ids(self.texts[i])), "length": float(len(self.texts[i])), "label": i % 2}


def test_datasets_of_dictionaries():
    fed = Federation.from_dataset(Sentences(TEXTS), clients=2, layout={"words": "tokens"})
    assert fed.input_shape == {"words": (4,), "length": (1,), "words_mask": (4,)}
    fed = Federation.from_dataset(Sentences(TEXTS), clients=2, inputs=["length"])
    assert fed.train.x["length"][:, 0].tolist() == [float(len(text)) for text in TEXTS]
    with pytest.raises(BadInput, match="sample 0 of the Dataset has no 'y'; it has words, length, label"):
        Federation.from_dataset(Sentences(TEXTS), label="y")
    with pytest.raises(BadInput, match="sample 0 of the Dataset has no 'age'"):
        Federation.from_dataset(Sentences(TEXTS), inputs=["age"])


def test_a_loader_is_refused_for_its_data_set():
    data = TensorDataset(torch.randn(7, 3), torch.arange(7) % 2)
    with pytest.raises(BadInput, match="give its Dataset, as in loader"):
        Federation.from_dataset(DataLoader(data, batch_size=3, shuffle=True))


# -- one data set per client ----------------------------------------------------------------------
def test_clients_of_every_kind_with_their_own_test_sets():
    x, y = RNG.normal(size=(30, 3)).astype(np.float32), np.arange(30) % 3
    data = TensorDataset(torch.from_numpy(x[:6]), torch.from_numpy(y[:6]))
    fed = Federation.from_clients(
        {
            "tensors": {"train": data, "test": data},
            "arrays": (x[6:12], y[6:12], x[12:15], y[12:15]),
            "no test": (x[15:20], y[15:20]),
            "rows": datasets.DatasetDict(
                train=datasets.Dataset.from_dict({"x": x[20:26].tolist(), "label": y[20:26].tolist()}),
                test=datasets.Dataset.from_dict({"x": x[26:].tolist(), "label": y[26:].tolist()}),
            ),
        }
    )
    assert fed.sizes == (6, 6, 5, 6)
    assert np.allclose(fed.train.x, x[[*range(12), *range(15, 26)]])
    assert (fed.client_test_from, [len(rows) for rows in fed.client_test]) == ("test", [6, 3, 0, 4])
    assert np.allclose(fed.test.x[fed.client_test[3]], x[26:])
    result = fh.run(fed, "mlp(hidden=[4])", rounds=1)
    assert [value is None for value in result.rows[-1]["clients"]] == [False, False, True, False]
    for settings in ({"test": 0.2}, {"client_test": 0.2}, {"test": (x, y)}):
        with pytest.raises(BadInput, match="these clients have their own test sets"):
            Federation.from_clients([(x, y, x, y)], **settings)
    with pytest.raises(BadInput, match=r"client 0, test holds samples .* all clients need the same shape"):
        Federation.from_clients([(x, y, x[:, :2], y)])


def test_test_samples_belong_to_clients():
    x, y, site = np.zeros((6, 2)), [0, 1, 0, 1, 0, 1], ["a", "b", "b", "a", "a", "b"]
    fed = Federation.from_arrays(x, y, groups=site, test=(x, y), test_groups=site[::-1])
    assert [rows.tolist() for rows in fed.client_test] == [[1, 2, 5], [0, 3, 4]]
    for settings, says in (
        ({"groups": site, "test_groups": site}, "for a test set"),
        ({"test": (x, y), "test_groups": site}, "for a test set"),
        (
            {"groups": site, "test": (x, y), "test_groups": site[:2]},
            "there are 6 test samples: name one",
        ),
        ({"groups": site, "test": (x, y), "test_groups": ["c", *site[1:]]}, "'c', which is none of the clients a, b"),
    ):
        with pytest.raises(BadInput, match=says):
            Federation.from_arrays(x, y, clients=2, **settings)


# -- pandas ---------------------------------------------------------------------------------------
def patients():
    return pd.DataFrame(
        {
            "age": [61, 48, 55, 70, 33, 52],
            "smoker": ["yes", "no", None, "yes", "no", "former"],
            "blood": pd.Categorical(["A", "0", "A", "B", "0", "A"], categories=["0", "A", "B", "AB"]),
            "sport": [True, False, True, True, False, True],
            "weight": pd.array([80, 72, None, 91, 60, 77], dtype="Int64"),
            "hospital": ["north", "south", "north", "south", "north", "south"],
            "ill": ["yes", "no", "no", "yes", "no", "yes"],
            "held": [0, 0, 0, 0, 1, 1],
        }
    )


def test_a_data_frame_with_categories_and_missing_values():
    frame = patients()
    with pytest.raises(BadInput, match="column 'smoker' has no value in row 2: fill it, or give missing="):
        Federation.from_dataset(frame, label="ill")
    fed = Federation.from_dataset(frame, "natural(hospital)", label="ill", test="held", missing="mean")
    assert (fed.class_names, fed.client_names, fed.sizes) == (("no", "yes"), ("north", "south"), (2, 2))
    assert [len(rows) for rows in fed.client_test] == [1, 1]
    columns = fh.TableColumns.find([frame], ["age", "smoker", "blood", "sport", "weight"], missing=True)
    assert columns.names == (
        *("age", "smoker=former", "smoker=no", "smoker=yes", "smoker missing"),
        *("blood=0", "blood=A", "blood=B", "blood=AB", "sport", "weight"),
    )
    third = fed.train.x[2].tolist()  # age 55: smoker and weight are missing, the mean of the others' weights is 81
    assert third == [55, 0, 0, 0, 1, 0, 1, 0, 0, 1, 81, 1]
    assert np.array_equal(columns.encode(frame)[[0, 1, 3]], fed.train.x[[0, 1, 3], :-1])


def test_texts_that_are_read_as_categories_are_named(caplog):
    frame = pd.DataFrame({"text": [f"so {i}" for i in range(40)], "size": ["s", "m"] * 20, "label": [0, 1] * 20})
    Federation.from_dataset(frame, clients=2)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "column 'text' has 40 different values in 40 rows, and becomes as many features: leave it out by inputs=[…], "
        "or read it as text by encode=…"
    ]


def test_categories_are_those_of_all_clients():
    frame = patients().dropna()
    parts = {name: own.drop(columns="hospital") for name, own in frame.groupby("hospital")}
    fed = Federation.from_clients(parts, label="ill", inputs=["age", "smoker"], normalize="standard")
    assert (fed.client_names, fed.input_shape) == (("north", "south"), (4,))  # former: in the south only
    new = frame.assign(smoker="cigar")
    with pytest.raises(BadInput, match="the test data: column 'smoker' holds 'cigar' in row 0, which is not a"):
        Federation.from_dataset(frame, label="ill", inputs=["age", "smoker"], test=new, clients=2)
    known = {"smoker": ["no", "former", "yes", "cigar"]}
    fed = Federation.from_dataset(frame, label="ill", inputs=["smoker"], test=new, clients=2, categories=known)
    assert (fed.input_shape, fed.test.x[0].tolist()) == ((4,), [0, 0, 0, 1])


@pytest.mark.parametrize(
    ("changes", "settings", "says"),
    [
        ({"when": pd.Timestamp("2026-01-01")}, {}, "column 'when' holds Timestamp such as '2026-01-01"),
        ({"mixed": ["a", 1, "b", 2, "c", 3]}, {}, "column 'mixed' holds both words and numbers"),
        ({"cells": [[1, 2]] * 6}, {}, "column 'cells' holds list"),
        ({"note": [f"text {i}" for i in range(6)]}, {}, "column 'note' has 6 different values, more than 5"),
        ({}, {"inputs": ["age", "size"]}, "no column 'size'; it has age"),
        ({}, {"categories": {"sex": ["f"]}}, "categories: 'sex' is none of the columns"),
        ({}, {"label": "sick"}, "no column 'sick'"),
    ],
)
def test_frames_that_do_not_fit_are_refused(monkeypatch, changes, settings, says):
    monkeypatch.setattr("fedhead.data.inputs.table_columns.MOST", 5)
    frame = patients().drop(columns=["smoker", "weight"]).assign(**changes)
    with pytest.raises(BadInput, match=says):
        Federation.from_dataset(frame, **{"label": "ill", **settings})


def test_texts_of_a_data_frame():
    frame = pd.DataFrame({"text": TEXTS, "shop": list("aabbab"), "label": [0, 1, 0, 1, 0, 1]})
    fed = Federation.from_dataset(frame, "natural(shop)", inputs="text", encode=ids)
    assert (fed.client_names, fed.input_shape) == (("a", "b"), {"x": (4,), "mask": (4,)})


def test_a_function_distributes_the_rows_of_a_data_frame():
    def alternately(y, clients, rng):
        return [np.arange(k, len(y), clients) for k in range(clients)]

    frame = patients()[["age", "sport", "ill"]]
    fed = Federation.from_dataset(frame, alternately, 2, label="ill")
    assert fed.train.x[fed.indices[1], 0].tolist() == [48, 70, 52]


def clinics(**columns):
    known = {"age": [60.0, 50.0] * 3, "sex": ["f", "m", "f"] * 2, "clinic": ["a", "b"] * 3, "label": [0, 1] * 3}
    return pd.DataFrame({name: values for name, values in (known | columns).items() if values is not None})


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({}, {"inputs": ["age", "label"]}, "inputs: 'label' is the column of the labels"),
        ({}, {"inputs": []}, "inputs is an empty list: name at least one column"),
        ({"age": None, "sex": None}, {}, "the table has no columns of inputs besides label, client and test mark"),
        ({"age": [1j] * 6}, {}, "column 'age' holds complex"),
        ({"sex": ["f", None, "m"] * 2}, {"inputs": "sex", "encode": "hashing(8)"}, "column 'sex' holds .* in row 1"),
        ({}, {"inputs": "sex", "encode": lambda text: []}, "encode: the tokenizer returns no token for any text"),
        ({}, {"inputs": "sex", "encode": lambda text: {"input_ids": []}}, "encode: the tokenizer returns no token"),
    ],
)
def test_columns_that_can_not_be_inputs_are_refused(columns, settings, message):
    with pytest.raises(BadInput, match=message):
        Federation.from_dataset(clinics(**columns), "natural(clinic)", **settings)


def test_a_category_given_twice_is_one_column():
    fed = Federation.from_dataset(clinics(), "natural(clinic)", categories={"sex": ["f", "m", "m"]})
    assert fed.input_shape == (3,)


def test_clients_that_are_none_or_share_a_name_are_refused():
    with pytest.raises(BadInput, match="clients is NoneType: give a list or dictionary"):
        Federation.from_clients(None)
    pair = (np.zeros((2, 3)), [0, 1])
    with pytest.raises(BadInput, match="clients: two have the same name, 0, '0'; give each its own"):
        Federation.from_clients({0: pair, "0": pair})


def test_texts_of_a_torch_data_set_are_encoded():
    pairs = [(word, k % 2) for k, word in enumerate(["good film", "bad film"] * 5)]
    fed = Federation.from_dataset(pairs, clients=2, encode="hashing(16)")
    assert (fed.train.x.dtype, fed.input_shape) == (torch.float32, (16,))
    with pytest.raises(BadInput, match="'x' holds texts: give encode=tokenizer"):
        Federation.from_dataset(pairs, clients=2)
    with pytest.raises(BadInput, match=r"training x holds texts: give token ids, or .*from_dataset\(…, encode=…\)"):
        Federation.from_arrays([text for text, _ in pairs], [label for _, label in pairs])
