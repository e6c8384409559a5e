package cacheserver

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
)

const (
	// removedNotes have when the Shard of a name was deleted. Their keys have too few segments to
	// be those of objects.
	removedNotes = "shardplane-removed-shards"
	// purgeInterval is the time between two looks for shards whose replicas are to go, and
	// purgePage how many of these are deleted at a time.
	purgeInterval = 3 * time.Second
	purgePage     = 500
)

// removedShards are those whose Shard was deleted in root: what they push is refused, and what they
// have pushed is deleted after a while. The deletion is noted before it is done, so that no crash
// loses it, and counts as long as there is no Shard of that name. That a Shard is missing which
// nobody was seen to delete means nothing.
type removedShards struct {
	notes       *etcd.Notes
	gracePeriod time.Duration
	// prefixes returns how the keys of a shard's replicas begin; false if that is not known now.
	prefixes func(shard string) ([]string, bool)

	mu sync.Mutex
	// noted is when their deletion was asked for.
	noted map[string]time.Time
}

func newRemovedShards(ctx context.Context, h *etcd.Handle, gracePeriod time.Duration, prefixes func(shard string) ([]string, bool)) (*removedShards, error) {
	r := &removedShards{notes: h.Notes(removedNotes), gracePeriod: gracePeriod, prefixes: prefixes}
	if err := r.read(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// shardKey is the key of the replica of a Shard.
func shardKey(shard string) string {
	return shardKeys() + shard
}

// shardKeys is how the keys of the replicas of Shards begin.
func shardKeys() string {
	return storage.ResourcePrefix(corev1alpha1.Resource("shards")) + "/" + corev1alpha1.RootShard + "/" + core.RootCluster.String() + "/"
}

// read reads which were noted, also by other replicas of the server.
func (r *removedShards) read(ctx context.Context) error {
	notes, err := r.notes.Read(ctx)
	if err != nil {
		return fmt.Errorf("reading which shards were removed: %w", err)
	}
	noted := make(map[string]time.Time, len(notes))
	for shard, value := range notes {
		at, err := time.Parse(time.RFC3339, value)
		if err != nil {
			return fmt.Errorf("reading when shard %q was removed: %w", shard, err)
		}
		noted[shard] = at
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noted = noted
	return nil
}

// deleting notes that somebody asks for the deletion of a Shard.
func (r *removedShards) deleting(ctx context.Context, shard string) error {
	now := time.Now().UTC().Truncate(time.Second)
	if err := r.notes.Set(ctx, shard, now.Format(time.RFC3339)); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noted[shard] = now
	return nil
}

// since returns since when a shard is removed, if it is. One whose Shard is there, again or still, is not.
func (r *removedShards) since(ctx context.Context, shard string) (time.Time, bool, error) {
	r.mu.Lock()
	at, noted := r.noted[shard]
	r.mu.Unlock()
	if !noted {
		return time.Time{}, false, nil
	}
	there, err := r.notes.There(ctx, shardKey(shard))
	return at, err == nil && !there, err
}

// Wrap notes deletions of Shards, and refuses what removed shards push.
func (r *removedShards) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := r.check(req); err != nil {
			responsewriters.ErrorNegotiated(err, codecs, schema.GroupVersion{Version: "v1"}, w, req)
			return
		}
		next.ServeHTTP(w, req)
	})
}

func (r *removedShards) check(req *http.Request) error {
	shard, scoped := request.ShardFrom(req.Context())
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !scoped || !ok || !info.IsResourceRequest || shard.Wildcard {
		return nil
	}
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	switch info.Verb {
	case "delete":
		cluster, _ := request.ClusterFrom(req.Context())
		// The root shard is never removed: it tells which shards there are, itself among them.
		if shard.Name == corev1alpha1.RootShard && cluster.Name == core.RootCluster && resource.Group == corev1alpha1.SchemeGroupVersion.Group && resource.Resource == "shards" && info.Name != corev1alpha1.RootShard {
			if err := r.deleting(req.Context(), info.Name); err != nil {
				return apierrors.NewServiceUnavailable("noting that the shard is removed: " + err.Error()) //nolint:forbidigo // as in digests.go
			}
		}
	case "create", "update", "patch":
		at, removed, err := r.since(req.Context(), shard.Name)
		if err != nil {
			return apierrors.NewServiceUnavailable("asking whether the shard was removed: " + err.Error()) //nolint:forbidigo // as in digests.go
		}
		if removed {
			return apierrors.NewForbidden(resource, info.Name, fmt.Errorf("shard %q was removed: its Shard was deleted in root, %s, and its replicas are deleted here; it may push again when there is a Shard of its name", shard.Name, at.Format(time.RFC3339)))
		}
	}
	return nil
}

// Run deletes what removed shards have pushed, until ctx is done.
func (r *removedShards) Run(ctx context.Context) error {
	return repeat(ctx, max(min(purgeInterval, r.gracePeriod), time.Second/10), "Cannot delete the replicas of removed shards, trying again", r.purge)
}

// purge deletes what is due.
func (r *removedShards) purge(ctx context.Context) error {
	if err := r.read(ctx); err != nil {
		return err
	}
	for shard := range r.names() {
		at, removed, err := r.since(ctx, shard)
		switch {
		case err != nil:
			return err
		case !removed:
			// Deleting follows the note at once, or not at all.
			if time.Since(at) > time.Minute {
				if err := r.notes.Delete(ctx, shard, at.Format(time.RFC3339), shardKey(shard)); err != nil {
					return err
				}
			}
		case time.Since(at) >= r.gracePeriod:
			if err := r.purgeShard(ctx, shard); err != nil {
				return err
			}
		}
	}
	return nil
}

// purgeShard deletes all replicas of a shard, page by page, as long as it has no Shard.
func (r *removedShards) purgeShard(ctx context.Context, shard string) error {
	prefixes, known := r.prefixes(shard)
	if !known {
		return errUnread
	}
	deleted, began := 0, time.Now()
	for _, prefix := range prefixes {
		for {
			n, err := r.notes.DeletePage(ctx, prefix, purgePage, shardKey(shard))
			if deleted += n; err != nil {
				return err
			}
			if n < purgePage {
				break
			}
		}
	}
	if deleted > 0 {
		klog.FromContext(ctx).Info("Deleted the replicas of a shard that was removed", "name", shard, "replicas", deleted, "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// registered returns the shards that have a Shard in root.
func (r *removedShards) registered(ctx context.Context) (sets.Set[string], error) {
	names, err := r.notes.Names(ctx, shardKeys())
	if err != nil {
		return nil, fmt.Errorf("reading which shards are registered: %w", err)
	}
	return sets.New(names...), nil
}

// names returns the shards that were removed.
func (r *removedShards) names() sets.Set[string] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return sets.New(slices.Collect(maps.Keys(r.noted))...)
}
