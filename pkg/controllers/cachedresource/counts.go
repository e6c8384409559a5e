package cachedresource

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
)

// countTimeout bounds the request for one count.
const countTimeout = 5 * time.Second

// choose counts the objects that a cached resource selects. If its logical cluster may not have
// as many replicated, or as many bytes, p names the oldest that it may.
func (c *controller) choose(ctx context.Context, object *cachev1alpha1.CachedResource, p *apis.Publication) (count int, err error) {
	cluster, gvr := logicalcluster.From(object), apis.CachedResourceOf(object)
	objects, bytes := c.room(object)
	stored, known := c.Store.Bytes(cluster)
	if small := c.LimitBytes == 0 || known && stored <= c.LimitBytes; small && p.Selector.Empty() {
		if count, err = total(ctx, c.Local.Cluster(cluster.Path()), gvr); err != nil || c.Limit == 0 || count <= objects {
			return count, err
		}
	}
	var all []Stored
	if err := c.Store.Each(ctx, cluster, gvr, func(o Stored) {
		if p.Selector.Matches(labels.Set(o.Labels)) {
			o.Labels = nil
			all = append(all, o)
		}
	}); err != nil {
		return 0, fmt.Errorf("counting %s: %w", gvr.GroupResource(), err)
	}
	slices.SortFunc(all, func(a, b Stored) int {
		return cmp.Or(a.Created.Compare(b.Created.Time), cmp.Compare(a.UID, b.UID))
	})
	for i, o := range all {
		if c.Limit > 0 && i >= objects || c.LimitBytes > 0 && p.Bytes+o.Bytes > bytes {
			p.Names = make([]string, 0, i)
			for _, fits := range all[:i] {
				p.Names = append(p.Names, fits.Name)
			}
			break
		}
		p.Bytes += o.Bytes
	}
	return len(all), nil
}

// room returns how many objects a cached resource may have replicated, and how many bytes: what
// older ones in its logical cluster leave of the limits.
func (c *controller) room(object *cachev1alpha1.CachedResource) (objects int, bytes int64) {
	objects, bytes = c.Limit, c.LimitBytes
	for publisher, other := range c.others(object) {
		if !older(other, object) {
			continue
		}
		if other.Status.ResourceCounts != nil {
			objects -= min(other.Status.ResourceCounts.Local, objects)
		}
		bytes -= min(c.Publications.Bytes(publisher), bytes)
	}
	return objects, bytes
}

// limits says what a logical cluster may have replicated.
func (c *controller) limits() string {
	var all []string
	if c.Limit > 0 {
		all = append(all, strconv.Itoa(c.Limit))
	}
	if c.LimitBytes > 0 {
		all = append(all, resource.NewQuantity(c.LimitBytes, resource.BinarySI).String()+"B of them")
	}
	return strings.Join(all, ", and ")
}

// cachedObjects counts the replicas of a cached resource on the cache server.
func (c *controller) cachedObjects(ctx context.Context, object *cachev1alpha1.CachedResource) (int, error) {
	return total(ctx, c.Cache.Cluster(logicalcluster.From(object).Path()), apis.ReplicatedOf(object))
}

// gone reports whether the cache server has no replicas of a cached resource. It fails if that is unknown.
func (c *controller) gone(ctx context.Context, object *cachev1alpha1.CachedResource) (bool, error) {
	n, err := c.cachedObjects(ctx, object)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return n == 0 && err == nil, err
}

// isUnserved reports whether the cache server has answered that it does not serve a resource, or not yet.
func isUnserved(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsTooManyRequests(err) }

// total counts all objects of a resource, which one short list tells.
func total(ctx context.Context, scope client.Scope, gvr schema.GroupVersionResource) (count int, err error) {
	clients, err := scope.Metadata()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	page, err := clients.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("counting %s: %w", gvr.GroupResource(), err)
	}
	count = len(page.Items)
	if remaining := page.RemainingItemCount; remaining != nil {
		count += int(*remaining)
	}
	return count, nil
}
