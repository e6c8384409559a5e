package storage

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/storage/value"
)

// Header is what an object says of its life: who owns it, and how it is deleted.
type Header struct {
	UID types.UID `json:"uid"`
	// ResourceVersion is empty in a header that was decoded without its key's revision.
	ResourceVersion   string                  `json:"-"`
	DeletionTimestamp *metav1.Time            `json:"deletionTimestamp"`
	Finalizers        []string                `json:"finalizers"`
	OwnerReferences   []metav1.OwnerReference `json:"ownerReferences"`
}

// protobufMark is how values in protobuf begin.
var protobufMark = []byte("k8s\x00")

// Plain reports whether a value, as etcd has it, tells without being decoded that nobody owns the
// object and that it is not being deleted. Of values in protobuf, and of encrypted ones, it never
// does.
func Plain(stored []byte) bool {
	return len(stored) > 0 && stored[0] == '{' &&
		!bytes.Contains(stored, []byte(`"ownerReferences"`)) && !bytes.Contains(stored, []byte(`"deletionTimestamp"`))
}

// Header decodes the header of an object from its value, as etcd has it. The key is without the
// prefix of all keys.
func (b *Backend) Header(ctx context.Context, key string, stored []byte) (h Header, err error) {
	if stored, err = b.Decrypt(ctx, key, stored); err != nil {
		return Header{}, err
	}
	encoded, isProtobuf := bytes.CutPrefix(stored, protobufMark)
	if !isProtobuf {
		var object struct {
			Metadata Header `json:"metadata"`
		}
		if err := json.Unmarshal(stored, &object); err != nil {
			return Header{}, fmt.Errorf("decoding %s: %w", key, err)
		}
		return object.Metadata, nil
	}
	// All kinds have their metadata in the same field.
	var unknown runtime.Unknown
	var object metav1.PartialObjectMetadata
	if err = unknown.Unmarshal(encoded); err == nil {
		err = object.Unmarshal(unknown.Raw)
	}
	if err != nil {
		return Header{}, fmt.Errorf("decoding %s: %w", key, err)
	}
	return headerOf(&object)
}

// Decrypt returns a value, as etcd has it, as it was before it was encrypted, if it was. The key is
// without the prefix of all keys.
func (b *Backend) Decrypt(ctx context.Context, key string, stored []byte) ([]byte, error) {
	if b.cfg.Transformers == nil {
		return stored, nil
	}
	transformer := b.cfg.Transformers.TransformerForResource(ResourceOf(key))
	plain, _, err := transformer.TransformFromStorage(ctx, stored, value.DefaultContext(b.cfg.Prefix+key))
	if err != nil {
		return nil, fmt.Errorf("decrypting %s: %w", key, err)
	}
	return plain, nil
}

func headerOf(obj runtime.Object) (Header, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return Header{}, err
	}
	return Header{
		UID: m.GetUID(), ResourceVersion: m.GetResourceVersion(),
		DeletionTimestamp: m.GetDeletionTimestamp(), Finalizers: m.GetFinalizers(), OwnerReferences: m.GetOwnerReferences(),
	}, nil
}

// ReadHeader asks a quorum of etcd for an object. The header of none is the zero value.
func (b *Backend) ReadHeader(ctx context.Context, key string) (Header, error) {
	response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+key)
	if err != nil {
		return Header{}, fmt.Errorf("etcd does not tell of %s: %w", key, err)
	}
	if len(response.Kvs) == 0 {
		return Header{}, nil
	}
	h, err := b.Header(ctx, key, response.Kvs[0].Value)
	h.ResourceVersion = strconv.FormatInt(response.Kvs[0].ModRevision, 10)
	return h, err
}

// SeenHeader returns the header of an object as of a revision or later: from the watch cache of its
// resource where there is one that is that far, otherwise as ReadHeader does.
func (b *Backend) SeenHeader(ctx context.Context, key string, revision uint64) (Header, error) {
	if h := b.hubOf(ResourcePrefixOf(key)); h != nil {
		switch obj, known := h.GetAt(ctx, key, revision); {
		case known && obj == nil:
			return Header{}, nil
		case known:
			return headerOf(obj)
		}
	}
	return b.ReadHeader(ctx, key)
}

// ResourcePrefixOf returns the prefix of the keys of the resource that the key of an object is of,
// such as "/core/secrets/".
func ResourcePrefixOf(key string) string {
	group := strings.IndexByte(key[1:], '/') + 1
	return key[:group+2+strings.IndexByte(key[group+1:], '/')]
}

// ResourceOf is the reverse of ResourcePrefix, for the key of an object: what follows the name of
// the resource to keep some of its objects apart is no part of it.
func ResourceOf(key string) schema.GroupResource {
	group, name, _ := strings.Cut(strings.Trim(ResourcePrefixOf(key), "/"), "/")
	name, _, _ = strings.Cut(name, ":")
	if group == coreGroup {
		group = ""
	}
	return schema.GroupResource{Group: group, Resource: name}
}
