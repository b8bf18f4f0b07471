"""The generated messages: how etcd's files are prepared, and that they leave room for other etcd clients."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from falcon_etcd._generate import strip
from falcon_etcd._proto import rpc_pb2 as pb

ANNOTATED = """
syntax = "proto3";
package etcdserverpb;
import "gogoproto/gogo.proto";
import "etcd/api/mvccpb/kv.proto";  // for grpc-gateway
option go_package = "go.etcd.io/etcd/api/v3/etcdserverpb";
option (swagger) = { security: { type: "a"; } };
service KV {
  rpc Range(RangeRequest) returns (RangeResponse) {
      option (google.api.http) = {
        post: "/v3/kv/range"
        body: "*"
    };
  }
}
message RangeRequest {
  option (versionpb.etcd_version_msg) = "3.0";
  bytes key = 1;
  int64 min_mod_revision = 10 [(versionpb.etcd_version_field)="3.1"];
  mvccpb.KeyValue kv = 11;
}
"""


STRIPPED = """
syntax = "proto3";
package falcon.etcdserverpb;
import "falcon_etcd/_proto/kv.proto";
service KV {
  rpc Range(RangeRequest) returns (RangeResponse) { }
}
message RangeRequest {
  bytes key = 1;
  int64 min_mod_revision = 10;
  mvccpb.KeyValue kv = 11;
}
"""


def test_annotations_go_and_the_rest_stays() -> None:
    assert strip(ANNOTATED).split() == STRIPPED.split()


def test_a_damaged_file_is_refused() -> None:
    with pytest.raises(ValueError, match="is not closed"):
        strip("option (a) = { b: {}")


def test_another_etcd_client_can_register_its_messages() -> None:
    """Check that the names of etcd's own files are free in the process-wide pool."""
    file = descriptor_pb2.FileDescriptorProto(name="rpc.proto", package="etcdserverpb", syntax="proto3")
    file.message_type.add(name="RangeRequest")
    assert pb.RangeRequest.DESCRIPTOR.full_name == "falcon.etcdserverpb.RangeRequest"
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    assert descriptor_pool.Default().FindMessageTypeByName("etcdserverpb.RangeRequest").fields == []


def test_the_wire_is_etcds() -> None:
    """Check the bytes that etcd 3.6 defines: field 1 is the key, field 10 the smallest modification revision."""
    request = pb.RangeRequest(key=b"k", min_mod_revision=3)
    assert request.SerializeToString() == b"\x0a\x01k\x50\x03"
