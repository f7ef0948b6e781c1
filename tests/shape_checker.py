"""The type checker of ``test_annotations``: beartype, with whole numbers accepted where a float is asked for."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
