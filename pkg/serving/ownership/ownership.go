// Package ownership has a server make sure, before it reads or writes anything
// else, that the data in its etcd is its own. Data says so in a key that the
// first server makes (etcd.Handle.Claim); of data that is older than this key,
// it asks the objects.
package ownership

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/storage"
)

const (
	// pageSize is how many LogicalClusters are read at a time.
	pageSize = 500
	// pageTimeout bounds the read of one page.
	pageTimeout = 20 * time.Second

	// A LogicalCluster's key has this many segments below its resource's prefix;
	// on a cache server the shard is one more.
	segments = 2
)

// told are the resources that tell whose data it is, LogicalClusters first: they
// say the shard's name. Shards are on every cache server, which replicates few
// LogicalClusters.
var told = []schema.GroupResource{
	corev1alpha1.Resource("logicalclusters"),
	corev1alpha1.Resource("shards"),
}

// Claim makes sure that the data of h is want's, with the rules of
// etcd.Handle.Claim. transformers decrypt objects; nil reads them as they are.
func Claim(ctx context.Context, h *etcd.Handle, want etcd.Identity, transformers value.ResourceTransformers) error {
	r := reader{kv: h.Client().KV, prefix: h.Prefix(), transformers: transformers, found: map[etcd.Identity]bool{}}
	return h.Claim(ctx, want, r.owners)
}

// reader reads whose data is below prefix.
type reader struct {
	kv           clientv3.KV
	prefix       string
	transformers value.ResourceTransformers
	found        map[etcd.Identity]bool
}

func (r *reader) owners(ctx context.Context) ([]etcd.Identity, error) {
	for _, resource := range told {
		if err := r.read(ctx, resource); err != nil {
			return nil, err
		}
	}
	if len(r.found) > 0 {
		return slices.SortedFunc(maps.Keys(r.found), func(a, b etcd.Identity) int { return strings.Compare(a.String(), b.String()) }), nil
	}
	some, err := r.get(ctx, r.prefix+"/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	if len(some.Kvs) > 0 {
		return nil, fmt.Errorf("there are keys such as %s, but no LogicalCluster that says its shard", some.Kvs[0].Key)
	}
	return nil, nil
}

// read reads whose the objects of a resource are. Of shards the key is enough.
func (r *reader) read(ctx context.Context, resource schema.GroupResource) error {
	prefix := r.prefix + storage.ResourcePrefix(resource) + "/"
	options := []clientv3.OpOption{clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(pageSize)}
	withNames := resource == told[0]
	if !withNames {
		options = append(options, clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	}
	for from := prefix; ; {
		page, err := r.get(ctx, from, options...)
		if err != nil {
			return err
		}
		for _, kv := range page.Kvs {
			key := string(kv.Key)
			switch strings.Count(strings.TrimPrefix(key, prefix), "/") + 1 {
			case segments + 1:
				r.found[etcd.Identity{Kind: etcd.KindCacheServer}] = true
			case segments:
				if !withNames {
					break
				}
				shard, err := r.shardOf(ctx, resource, key, kv.Value)
				if err != nil {
					return err
				}
				if shard != "" {
					r.found[etcd.Identity{Kind: etcd.KindShard, Name: shard}] = true
				}
			}
		}
		if !page.More || !withNames {
			return nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// shardOf returns the shard that a LogicalCluster says it is on.
func (r *reader) shardOf(ctx context.Context, resource schema.GroupResource, key string, stored []byte) (string, error) {
	if r.transformers != nil {
		var err error
		if stored, _, err = r.transformers.TransformerForResource(resource).TransformFromStorage(ctx, stored, value.DefaultContext(key)); err != nil {
			return "", fmt.Errorf("cannot decrypt %s: give --encryption-provider-config the keys that it was written with: %w", key, err)
		}
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(stored, &object); err != nil {
		return "", fmt.Errorf("cannot read %s, which is encrypted if --encryption-provider-config is missing, or damaged: %w", key, err)
	}
	return object.Annotations[corev1alpha1.LogicalClusterShardAnnotationKey], nil
}

func (r *reader) get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	return r.kv.Get(ctx, key, options...)
}
