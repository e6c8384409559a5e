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

// Header contains the metadata of an object that concern ownership and deletion.
type Header struct {
	UID types.UID `json:"uid"`
	// ResourceVersion is empty if the header was decoded without the revision of its key.
	ResourceVersion   string                  `json:"-"`
	DeletionTimestamp *metav1.Time            `json:"deletionTimestamp"`
	Finalizers        []string                `json:"finalizers"`
	OwnerReferences   []metav1.OwnerReference `json:"ownerReferences"`
}

// protobufPrefix is the prefix of values in protobuf.
var protobufPrefix = []byte("k8s\x00")

// Plain reports whether an encoded value has neither owners nor a deletion timestamp. It does not decode the
// value; the result is false for protobuf and encrypted values.
func Plain(stored []byte) bool {
	return len(stored) > 0 && stored[0] == '{' &&
		!bytes.Contains(stored, []byte(`"ownerReferences"`)) && !bytes.Contains(stored, []byte(`"deletionTimestamp"`))
}

// Header decodes the header of a stored value. The key lacks the backend's prefix.
func (b *Backend) Header(ctx context.Context, key string, stored []byte) (h Header, err error) {
	if stored, err = b.Decrypt(ctx, key, stored); err != nil {
		return Header{}, err
	}
	encoded, isProtobuf := bytes.CutPrefix(stored, protobufPrefix)
	if !isProtobuf {
		var object struct {
			Metadata Header `json:"metadata"`
		}
		if err := json.Unmarshal(stored, &object); err != nil {
			return Header{}, fmt.Errorf("decoding %s: %w", key, err)
		}
		return object.Metadata, nil
	}
	// All kinds have their metadata in the same protobuf field.
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

// Decrypt decrypts a stored value. The key lacks the backend's prefix.
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

// ReadHeader reads the header of an object from a quorum of etcd. It is the zero value if there is no such object.
func (b *Backend) ReadHeader(ctx context.Context, key string) (Header, error) {
	response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+key)
	if err != nil {
		return Header{}, fmt.Errorf("reading %s from etcd: %w", key, err)
	}
	if len(response.Kvs) == 0 {
		return Header{}, nil
	}
	h, err := b.Header(ctx, key, response.Kvs[0].Value)
	h.ResourceVersion = strconv.FormatInt(response.Kvs[0].ModRevision, 10)
	return h, err
}

// CachedHeader returns the header of an object at a revision or later, from the watch cache if it is
// recent enough, otherwise as ReadHeader does.
func (b *Backend) CachedHeader(ctx context.Context, key string, revision uint64) (Header, error) {
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

// ResourcePrefixOf returns the resource's prefix of an object's key, e.g. "/core/secrets/".
func ResourcePrefixOf(key string) string {
	group := strings.IndexByte(key[1:], '/') + 1
	return key[:group+2+strings.IndexByte(key[group+1:], '/')]
}

// ResourceOf returns the resource of an object's key. It drops a suffix that distinguishes some objects
// of the resource, e.g. ":<suffix>" after the name.
func ResourceOf(key string) schema.GroupResource {
	group, name, _ := strings.Cut(strings.Trim(ResourcePrefixOf(key), "/"), "/")
	name, _, _ = strings.Cut(name, ":")
	if group == coreGroup {
		group = ""
	}
	return schema.GroupResource{Group: group, Resource: name}
}
