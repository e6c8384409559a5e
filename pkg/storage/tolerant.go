package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// A watch cache contains the objects of all tenants. One object that cannot be decoded would fail the list that fills
// it, and make the resource unavailable to all tenants. Therefore, lists of several logical clusters skip such
// objects. They do not skip objects that cannot be decrypted, because most likely a key is missing, and all objects
// would seem to be deleted.

// tolerated is the state of a list that skips undecodable objects.
type tolerated struct {
	// at is the current object of the list, which upstream passes to transformers only.
	at      value.Context
	skipped int
}

type toleratedKey struct{}

func toleratedFrom(ctx context.Context) *tolerated {
	t, _ := ctx.Value(toleratedKey{}).(*tolerated)
	return t
}

func listTolerant(ctx context.Context, s storage.Interface, key string, opts storage.ListOptions, list runtime.Object) error {
	t := &tolerated{}
	if err := s.GetList(context.WithValue(ctx, toleratedKey{}, t), key, opts, list); err != nil || t.skipped == 0 {
		return err
	}
	return dropNameless(list)
}

func dropNameless(list runtime.Object) error {
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	return meta.SetList(list, slices.DeleteFunc(items, func(item runtime.Object) bool {
		object, err := meta.Accessor(item)
		return err == nil && object.GetName() == ""
	}))
}

type recordingTransformer struct{ value.Transformer }

func (n recordingTransformer) TransformFromStorage(ctx context.Context, data []byte, of value.Context) (out []byte, stale bool, err error) {
	if t := toleratedFrom(ctx); t != nil {
		t.at = of
	}
	return n.Transformer.TransformFromStorage(ctx, data, of)
}

// tolerantDecoder replaces an undecodable object of a tolerant list with a placeholder without a name.
type tolerantDecoder struct {
	etcd3.Decoder
	report func(key string, revision uint64, err error)
}

func (d tolerantDecoder) DecodeListItem(ctx context.Context, data []byte, revision uint64, newItem func() runtime.Object) (runtime.Object, error) {
	obj, err := d.Decoder.DecodeListItem(ctx, data, revision, newItem)
	t := toleratedFrom(ctx)
	if err == nil || t == nil || t.at == nil {
		return obj, err
	}
	t.skipped++
	d.report(string(t.at.AuthenticatedData()), revision, err)
	return newItem(), nil
}

// recoveringCodec converts a panic to an error, because etcd watches decode in their own goroutines.
type recoveringCodec struct {
	runtime.Codec
	undecodable *atomic.Bool
}

func (c recoveringCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (obj runtime.Object, gvk *schema.GroupVersionKind, err error) {
	defer func() {
		if r := recover(); r != nil {
			obj, err = nil, unreadable.Recovered(r)
		}
		if err != nil {
			c.undecodable.Store(true)
		}
	}()
	return c.Codec.Decode(data, defaults, into)
}

func (b *Backend) reporter(resource schema.GroupResource, keys keyspace) func(key string, revision uint64, err error) {
	return func(key string, revision uint64, err error) {
		key = strings.TrimPrefix(key, b.cfg.Prefix)
		at, _ := ObjectKeyOf(keys.root, key)
		b.cfg.Unreadable.Add(unreadable.Object{
			Key: key, Revision: int64(revision), Resource: resource, //nolint:gosec // revisions are positive
			Cluster: at.Cluster, Namespace: at.Namespace, Name: at.Name, Reason: unreadable.Undecodable, Message: err.Error(),
		})
	}
}

// Unreadable returns the unreadable objects of a logical cluster with the key prefix.
func (b *Backend) Unreadable(ctx context.Context, cluster logicalcluster.Name, prefix string) ([]unreadable.Object, error) {
	return b.cfg.Unreadable.Prune(ctx, cluster, prefix, func(ctx context.Context, key string) (int64, error) {
		response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+key, clientv3.WithKeysOnly())
		if err != nil {
			return 0, fmt.Errorf("reading the revision of %s from etcd: %w", key, err)
		}
		if len(response.Kvs) == 0 {
			return 0, nil
		}
		return response.Kvs[0].ModRevision, nil
	})
}
