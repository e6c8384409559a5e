package bindings

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// beat says that the index runs, until ctx ends. When the process stood still it reads all
// bindings, and says when the index has them.
func (x *Index) beat(ctx context.Context) {
	ticker := time.NewTicker(claims.BeatInterval)
	defer ticker.Stop()
	for {
		if x.source.Beat() {
			asOf := time.Now()
			klog.InfoS("This process stood still: its views wait until the APIBindings have been read again")
			if err := x.catchUp(ctx); err == nil {
				x.source.Restart(asOf)
			} else if ctx.Err() == nil {
				klog.ErrorS(err, "Cannot read the APIBindings again")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// readPage is how many bindings are read at once.
const readPage = 500

// catchUp waits until the index has what bindings say now.
func (x *Index) catchUp(ctx context.Context) error {
	there, version, err := x.readAll(ctx)
	if err != nil {
		return fmt.Errorf("reading the APIBindings: %w", err)
	}
	return x.wait(ctx, func() bool { return x.has(there, version) })
}

// readAll returns the revisions of all bindings, and the version at which they are those.
func (x *Index) readAll(ctx context.Context) (there map[client.Key]uint64, version uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	there = map[client.Key]uint64{}
	opts := metav1.ListOptions{Limit: readPage}
	for {
		page, err := kinds.APIBindings.In(x.config.Local.Wildcard()).List(ctx, opts)
		if err != nil {
			return nil, 0, err
		}
		for i := range page.Items {
			b := &page.Items[i]
			there[client.KeyOf(b)] = revisionOf(b.ResourceVersion)
		}
		version = revisionOf(page.ResourceVersion)
		if opts.Continue = page.Continue; opts.Continue == "" {
			return there, version, nil
		}
	}
}

// revisionOf reads a resource version: those of etcd are numbers.
func revisionOf(resourceVersion string) uint64 {
	revision, _ := strconv.ParseUint(resourceVersion, 10, 64)
	return revision
}

// has reports whether the index is as new as all bindings were at a version.
func (x *Index) has(there map[client.Key]uint64, version uint64) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := 0
	for cluster, all := range x.clusters {
		for _, r := range all {
			revision, was := there[client.Key{Cluster: cluster, Name: r.name}]
			switch {
			case was && r.revision < revision, !was && r.revision <= version:
				return false
			case was:
				found++
			}
		}
	}
	return found == len(there)
}
