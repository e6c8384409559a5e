package hub

import (
	"context"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// Config describes the resource of a hub.
type Config struct {
	Logger klog.Logger
	// Resource is the name of the resource in metrics.
	Resource schema.GroupResource
	// Root is the prefix of the resource's keys, with a slash at its end.
	Root      string
	Versioner storage.Versioner
	// KeyFunc returns the key of an object; it must not fail.
	KeyFunc func(runtime.Object) string
	// GetAttrs returns the labels and fields for the selectors of watchers.
	GetAttrs storage.AttrFunc
	// NewFunc returns an empty object, for bookmarks.
	NewFunc func() runtime.Object
	// Shown returns an object as clients receive it, either itself or a copy.
	Shown func(runtime.Object) runtime.Object
	// WantProgress requests a progress notification from etcd.
	WantProgress func()
	// CurrentVersion reads the current resource version from etcd.
	CurrentVersion func(context.Context) (uint64, error)
	// CompactRevision is the revision up to which etcd is compacted.
	CompactRevision func() int64
	// MaxHistory is the maximum number of events that are kept in memory; 16,384 if it is 0.
	MaxHistory int
	// Undecodable reports whether decoding an object has failed since the last call.
	Undecodable func() bool
}

func (c *Config) versionOf(obj runtime.Object) uint64 {
	version, err := c.Versioner.ObjectResourceVersion(obj)
	if err != nil {
		c.Logger.Error(err, "Failed to parse the resource version of an object", "resource", c.Resource)
	}
	return version
}

// deleted returns the last state of an object as clients receive it with the version of its deletion.
func (c *Config) deleted(key string, last runtime.Object, version uint64) runtime.Object {
	obj := Shallow(last)
	if err := c.Versioner.UpdateObject(obj, version); err != nil {
		c.Logger.Error(err, "Failed to set the resource version of a deleted object", "resource", c.Resource, "key", key)
	}
	return c.Shown(obj)
}

// Request specifies a watch.
type Request struct {
	// Key is the watched prefix, with a slash at its end, or a single key.
	Key       string
	Predicate storage.SelectionPredicate
	// Attributes, if not nil, identifies the GetAttrs of the predicate, which is then used instead of the hub's. It
	// must be comparable; requests with equal Attributes must have the same GetAttrs, which is called once for all of
	// them. Events wait for GetAttrs: it must be quick and must not block.
	Attributes any
	// Claims restrict the watch to the objects of a claim set.
	Claims Claims
	// Version is the resource version after which the watch starts, unless Start is set; 0 is now.
	Version uint64
	// Start, if not nil, sends initial events and returns their version. send returns false if the watch has ended.
	Start func(ctx context.Context, send func(watch.Event) bool) (version uint64, err error)
	// Older watches the same in etcd. It must send a bookmark two seconds before the deadline of its context.
	Older func(ctx context.Context, version uint64) (watch.Interface, error)
}

// Claims restrict a request to a set of logical clusters, unless Set is nil.
type Claims struct {
	Set *claims.Set
	// Root is the prefix of the claimed objects' keys, up to the logical cluster.
	Root string
}

func (c Claims) prefix(cluster logicalcluster.Name) string { return c.Root + string(cluster) + "/" }

// cluster returns the logical cluster of a key, or "" if the key includes all.
func (c Claims) cluster(key string) logicalcluster.Name {
	rest, ok := strings.CutPrefix(key, c.Root)
	name, _, found := strings.Cut(rest, "/")
	if !ok || !found {
		return ""
	}
	return logicalcluster.Name(name)
}

// identityPrefix is the first character of an identity's key segment.
const identityPrefix = ':'

// inScope reports whether a key is the watched key, or has the watched prefix.
func inScope(watched, key string) bool {
	return strings.HasPrefix(key, watched) && (len(key) == len(watched) || watched[len(watched)-1] == '/')
}

func (c *Config) matches(pred *storage.SelectionPredicate, obj runtime.Object) bool {
	matches, err := pred.Matches(obj)
	if err != nil {
		c.Logger.Error(err, "Failed to match an object", "resource", c.Resource)
	}
	return matches
}

func expiredClaims(err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewResourceExpired(err.Error())
}
