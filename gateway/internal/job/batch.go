package job

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"falcon.dev/gateway/internal/wire"
)

const (
	// MaxValue bounds a batch, which is one value in etcd.
	MaxValue     = 512 << 10
	packTo       = 480 << 10 // leaves room for the batch's head
	entriesField = 7         // of Batch, in gateway.proto
)

// pack makes batches of encoded entries, each below MaxValue. An entry is encoded once, whatever number of batches
// holds it.
func (j *Job) pack(pods []*pod) [][]byte {
	var batches [][]byte
	var batch []byte
	size := 0
	for _, p := range pods {
		if batch == nil || size+sizeIn(p) > packTo {
			if batch != nil {
				batches = append(batches, batch)
			}
			batch, size = j.head(), 0
		}
		batch = protowire.AppendTag(batch, entriesField, protowire.BytesType)
		batch = protowire.AppendBytes(batch, p.encoded)
		size += sizeIn(p)
	}
	if batch != nil {
		batches = append(batches, batch)
	}
	return batches
}

// head returns a batch without entries; entries may be appended, as protobuf's encoding allows.
func (j *Job) head() []byte {
	return encode(&wire.Batch{
		Gateway:     j.gateway.ID,
		Incarnation: j.gateway.Incarnation,
		Number:      j.gateway.nextBatch(),
		Namespace:   j.Key.Namespace,
		Job:         j.Key.Name,
		JobUid:      j.Key.UID,
	})
}

// encode marshals a message of ours. It cannot fail: names that are no UTF-8 never come in.
func encode(message proto.Message) []byte {
	encoded, err := proto.Marshal(message)
	if err != nil {
		panic(err)
	}
	return encoded
}

func sizeOf(pods []*pod) int {
	size := 0
	for _, p := range pods {
		size += sizeIn(p)
	}
	return size
}

// sizeIn returns the bytes that the pod's entry takes in a batch.
func sizeIn(p *pod) int {
	return protowire.SizeTag(entriesField) + protowire.SizeBytes(len(p.encoded))
}
