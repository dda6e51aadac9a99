from specgrove.proto.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrafterMessage(_message.Message):
    __slots__ = ("hello", "tree", "decline")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    DECLINE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    tree: TokenTree
    decline: Decline
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., tree: _Optional[_Union[TokenTree, _Mapping]] = ..., decline: _Optional[_Union[Decline, _Mapping]] = ...) -> None: ...

class VerifierMessage(_message.Message):
    __slots__ = ("welcome", "open", "commit", "close")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    open: Open
    commit: Commit
    close: Close
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "drafter_id", "incarnation", "vocab_hash", "models", "max_sessions", "feature_layers")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VOCAB_HASH_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    drafter_id: str
    incarnation: str
    vocab_hash: str
    models: _containers.RepeatedScalarFieldContainer[str]
    max_sessions: int
    feature_layers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, protocol_version: _Optional[int] = ..., drafter_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., vocab_hash: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., max_sessions: _Optional[int] = ..., feature_layers: _Optional[_Iterable[int]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("verifier_id", "incarnation", "model", "vocab_size", "max_nodes", "max_depth")
    VERIFIER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    verifier_id: str
    incarnation: str
    model: str
    vocab_size: int
    max_nodes: int
    max_depth: int
    def __init__(self, verifier_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., model: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_nodes: _Optional[int] = ..., max_depth: _Optional[int] = ...) -> None: ...

class DraftBudget(_message.Message):
    __slots__ = ("max_nodes", "max_depth")
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    max_nodes: int
    max_depth: int
    def __init__(self, max_nodes: _Optional[int] = ..., max_depth: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session_key", "token_ids", "sampling", "budget", "stop_token_ids", "features", "rule", "expansion")
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_FIELD_NUMBER: _ClassVar[int]
    session_key: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _generation_pb2.SamplingParams
    budget: DraftBudget
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    features: bytes
    rule: _generation_pb2.VerificationRule
    expansion: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_key: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingParams, _Mapping]] = ..., budget: _Optional[_Union[DraftBudget, _Mapping]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., features: _Optional[bytes] = ..., rule: _Optional[_Union[_generation_pb2.VerificationRule, str]] = ..., expansion: _Optional[_Iterable[int]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("session_key", "from_len", "token_ids", "budget", "features")
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    session_key: int
    from_len: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    budget: DraftBudget
    features: bytes
    def __init__(self, session_key: _Optional[int] = ..., from_len: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., budget: _Optional[_Union[DraftBudget, _Mapping]] = ..., features: _Optional[bytes] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("session_key", "reason")
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session_key: int
    reason: str
    def __init__(self, session_key: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class TokenTree(_message.Message):
    __slots__ = ("session_key", "base_len", "base_hash", "token_ids", "parents", "members", "draft_s", "laws")
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    BASE_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_S_FIELD_NUMBER: _ClassVar[int]
    LAWS_FIELD_NUMBER: _ClassVar[int]
    session_key: int
    base_len: int
    base_hash: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    members: _containers.RepeatedScalarFieldContainer[int]
    draft_s: float
    laws: _containers.RepeatedCompositeFieldContainer[ChildLaw]
    def __init__(self, session_key: _Optional[int] = ..., base_len: _Optional[int] = ..., base_hash: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., members: _Optional[_Iterable[int]] = ..., draft_s: _Optional[float] = ..., laws: _Optional[_Iterable[_Union[ChildLaw, _Mapping]]] = ...) -> None: ...

class ChildLaw(_message.Message):
    __slots__ = ("parent", "token_ids", "probs", "draws")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROBS_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    parent: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    probs: _containers.RepeatedScalarFieldContainer[float]
    draws: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parent: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., probs: _Optional[_Iterable[float]] = ..., draws: _Optional[_Iterable[int]] = ...) -> None: ...

class Decline(_message.Message):
    __slots__ = ("session_key", "base_len", "reason")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Decline.Reason]
        REASON_NOTHING_TO_PROPOSE: _ClassVar[Decline.Reason]
        REASON_NO_CAPACITY: _ClassVar[Decline.Reason]
        REASON_LOST_PLACE: _ClassVar[Decline.Reason]
    REASON_UNSPECIFIED: Decline.Reason
    REASON_NOTHING_TO_PROPOSE: Decline.Reason
    REASON_NO_CAPACITY: Decline.Reason
    REASON_LOST_PLACE: Decline.Reason
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session_key: int
    base_len: int
    reason: Decline.Reason
    def __init__(self, session_key: _Optional[int] = ..., base_len: _Optional[int] = ..., reason: _Optional[_Union[Decline.Reason, str]] = ...) -> None: ...
