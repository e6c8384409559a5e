package cachedresource

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
)

// countPage is how many objects one request of a count asks for.
const countPage = 500

// choose counts the objects that a cached resource selects. If its logical cluster may not have
// as many replicated, names are the oldest that it may.
func (c *controller) choose(ctx context.Context, object *cachev1alpha1.CachedResource, p *apis.Publication) (count int, names []string, err error) {
	scope := c.Local.Cluster(logicalcluster.From(object).Path())
	gvr := apis.CachedResourceOf(object)
	room := c.room(object)
	if p.Selector.Empty() {
		if count, err = total(ctx, scope, gvr); err != nil || room < 0 || count <= room {
			return count, nil, err
		}
	}
	var all []metav1.ObjectMeta
	err = eachMetadata(ctx, scope, gvr, metav1.ListOptions{Limit: countPage, LabelSelector: p.Selector.String()}, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			m := &page.Items[i]
			all = append(all, metav1.ObjectMeta{Name: m.Name, UID: m.UID, CreationTimestamp: m.CreationTimestamp})
		}
	})
	if err != nil || room < 0 || len(all) <= room {
		return len(all), nil, err
	}
	slices.SortFunc(all, func(a, b metav1.ObjectMeta) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	names = make([]string, 0, room)
	for _, m := range all[:room] {
		names = append(names, m.Name)
	}
	return len(all), names, nil
}

// room returns how many objects a cached resource may have replicated: what older ones in its
// logical cluster leave of the limit. Without a limit that is negative.
func (c *controller) room(object *cachev1alpha1.CachedResource) int {
	if c.Limit == 0 {
		return -1
	}
	room := c.Limit
	for _, informer := range c.All {
		for _, other := range informer.Lister().Cluster(logicalcluster.From(object)).List(nil) {
			older := cmp.Or(other.CreationTimestamp.Compare(object.CreationTimestamp.Time), cmp.Compare(other.UID, object.UID)) < 0
			if older && other.Status.ResourceCounts != nil {
				room -= min(other.Status.ResourceCounts.Local, room)
			}
		}
	}
	return room
}

// cachedObjects counts the replicas of a cached resource on the cache server.
func (c *controller) cachedObjects(ctx context.Context, object *cachev1alpha1.CachedResource) (int, error) {
	gvr := apis.CachedResourceOf(object)
	gvr.Resource += ":" + object.Status.IdentityHash
	return total(ctx, c.Cache(logicalcluster.From(object)), gvr)
}

// total counts all objects of a resource, which one short list tells.
func total(ctx context.Context, scope client.Scope, gvr schema.GroupVersionResource) (count int, err error) {
	err = eachMetadata(ctx, scope, gvr, metav1.ListOptions{Limit: 1}, func(page *metav1.PartialObjectMetadataList) {
		count += len(page.Items)
		if remaining := page.RemainingItemCount; remaining != nil {
			count += int(*remaining)
			page.Continue = ""
		}
	})
	return count, err
}

// eachMetadata calls visit for each page of a list, until one has no continuation.
func eachMetadata(ctx context.Context, scope client.Scope, gvr schema.GroupVersionResource, options metav1.ListOptions, visit func(*metav1.PartialObjectMetadataList)) error {
	clients, err := scope.Metadata()
	if err != nil {
		return err
	}
	for {
		page, err := clients.Resource(gvr).List(ctx, options)
		if err != nil {
			return fmt.Errorf("counting %s: %w", gvr.GroupResource(), err)
		}
		visit(page)
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}
