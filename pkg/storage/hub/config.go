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

// Config is what a hub knows of its resource.
type Config struct {
	// Resource names the resource in metrics.
	Resource schema.GroupResource
	// Root is the prefix of the resource's keys, with a slash at its end.
	Root      string
	Versioner storage.Versioner
	// KeyFunc gives the key of an object; it must not fail.
	KeyFunc func(runtime.Object) string
	// GetAttrs gives what the selectors of watchers are matched with.
	GetAttrs storage.AttrFunc
	// NewFunc returns an empty object, for bookmarks.
	NewFunc func() runtime.Object
	// Shown returns an object as it is shown: itself, or a copy. nil shows all as they are.
	Shown func(runtime.Object) runtime.Object
	// WantProgress has etcd asked for a progress notification soon.
	WantProgress func()
	// CurrentVersion asks etcd for its resource version.
	CurrentVersion func(context.Context) (uint64, error)
	// CompactRevision is up to where etcd was compacted.
	CompactRevision func() int64
	// Undecodable reports whether an object could not be decoded since the last call; nil if all can.
	Undecodable func() bool
}

// shown returns an object as it is shown.
func (c *Config) shown(obj runtime.Object) runtime.Object {
	if c.Shown == nil {
		return obj
	}
	return c.Shown(obj)
}

func (c *Config) versionOf(obj runtime.Object) uint64 {
	version, err := c.Versioner.ObjectResourceVersion(obj)
	if err != nil {
		klog.ErrorS(err, "Cannot tell the version of an object", "resource", c.Resource)
	}
	return version
}

// Request is what a watch is for.
type Request struct {
	// Key is the prefix of what is watched, with a slash at its end, or one key.
	Key       string
	Predicate storage.SelectionPredicate
	// Attributes, if not nil, says that the predicate is matched with its own
	// GetAttrs, not with the hub's. Requests whose GetAttrs are the same have the
	// same Attributes here, which must be comparable: of an event, they are
	// computed once for all of them. They are computed while events wait, so
	// GetAttrs must be quick and must not block.
	Attributes any
	// Claims restrict it to the objects of a set.
	Claims Claims
	// Version is where the watch starts, unless Start says so; 0 is now.
	Version uint64
	// Start sends initial events, if not nil, and returns their version. send
	// returns false where the watch is over; of an error the watch tells.
	Start func(ctx context.Context, send func(watch.Event) bool) (version uint64, err error)
	// Older watches the same key and predicate from a version that the hub has
	// no history of, but the watch cache may have. Bookmarks come two seconds
	// before the deadline of its context.
	Older func(ctx context.Context, version uint64) (watch.Interface, error)
}

// Claims restrict a request to a set of logical clusters, unless Set is nil.
type Claims struct {
	Set *claims.Set
	// Root is what comes before the name of a logical cluster in the keys of the set's
	// objects.
	Root string
}

func (c Claims) prefix(cluster logicalcluster.Name) string { return c.Root + string(cluster) + "/" }

// cluster returns the logical cluster of a key, or none where it is for all.
func (c Claims) cluster(key string) logicalcluster.Name {
	rest, ok := strings.CutPrefix(key, c.Root)
	name, _, found := strings.Cut(rest, "/")
	if !ok || !found {
		return ""
	}
	return logicalcluster.Name(name)
}

// identityMark starts the segment of a key that is an identity.
const identityMark = ':'

// inScope reports whether a key is the one that is watched, or below its prefix.
func inScope(watched, key string) bool {
	return strings.HasPrefix(key, watched) && (len(key) == len(watched) || watched[len(watched)-1] == '/')
}

func (c *Config) matches(pred *storage.SelectionPredicate, obj runtime.Object) bool {
	matches, err := pred.Matches(obj)
	if err != nil {
		klog.ErrorS(err, "Cannot match an object", "resource", c.Resource)
	}
	return matches
}

func expiredClaims(err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewResourceExpired(err.Error())
}
