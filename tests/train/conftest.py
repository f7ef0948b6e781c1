import pytest
from subject import CONFIG, make_data, make_model


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def data():
    return make_data()


@pytest.fixture
def validation():
    return make_data(15, seed=1, name="more dots")


@pytest.fixture
def config():
    return CONFIG
