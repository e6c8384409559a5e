package garbagecollector

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// begunAnnotation is the time from which on garbage is deleted that existed before the first start of the
// garbage collector.
//
//reference:metadata LogicalCluster of `system:admin` | garbage collector
const begunAnnotation = "internal.shardplane.io/garbage-collected-since"

// begin determines the garbage that existed before the first collector, and delays its deletion. It is repeated if the process is
// restarted during the delay.
func (c *Controller) begin(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	in := kinds.LogicalClusters.In(c.config.Local.Cluster(tenancy.AdminCluster.Path()))
	lc, err := in.Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
	if err != nil {
		// If the shard has not created its own logical cluster yet, there is no data of an earlier release.
		c.newData = c.newData || apierrors.IsNotFound(err)
		return fmt.Errorf("reading the start time of garbage collection: %w", err)
	}
	until, err := time.Parse(time.RFC3339, lc.Annotations[begunAnnotation])
	if err == nil && !time.Now().Before(until) {
		return nil
	}
	first := err != nil
	var found map[Item]types.UID
	if !first || !c.newData {
		reads := func() error {
			_, err := in.Get(ctx, lc.Name, metav1.GetOptions{})
			return err
		}
		if found, err = c.garbage(ctx, reads); err != nil {
			return err
		}
	}
	if first {
		until = time.Now()
		if len(found) > 0 {
			until = until.Add(c.config.InitialDelay).Truncate(time.Second)
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{begunAnnotation: until.UTC().Format(time.RFC3339)}}})
		if err != nil {
			return fmt.Errorf("encoding a patch: %w", err)
		}
		if _, err := in.Patch(ctx, lc.Name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("recording the start time of garbage collection: %w", err)
		}
	}
	if len(found) == 0 {
		return nil
	}
	counts := map[string]int{}
	for item := range found {
		counts[strings.Trim(item.prefix(), "/")]++
	}
	logger.Info("No garbage collector has processed this data before. Objects whose owners do not exist will be deleted, unless garbage collection is disabled before the initial delay ends",
		"objects", len(found), "from", until, "byResource", summary(counts))
	for item := range found {
		logger.V(2).Info("Object will be deleted", "object", item)
	}
	c.collector.held.set(until, found)
	return nil
}

// summary lists the number of objects by resource in descending order.
func summary(counts map[string]int) []string {
	const most = 20
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	out := make([]string, 0, min(len(names), most))
	for _, name := range names[:min(len(names), most)] {
		out = append(out, fmt.Sprintf("%s: %d", name, counts[name]))
	}
	return out
}

// garbage returns the objects to delete, and those that cannot be judged now, which are retried individually: their deletion is
// delayed, too. reads returns an error if reads fail in general, so that errors can be attributed to objects.
func (c *Controller) garbage(ctx context.Context, reads func() error) (map[Item]types.UID, error) {
	found := map[Item]types.UID{}
	for _, item := range c.collector.graph.all() {
		o, remove, err := c.isGarbage(ctx, item)
		if err != nil {
			if err := reads(); err != nil {
				return nil, fmt.Errorf("counting garbage: %w", err)
			}
			klog.FromContext(ctx).Error(err, "Failed to determine whether an object is garbage: if it is, it will be deleted after the initial delay", "object", item)
		}
		if err != nil || remove {
			found[item] = o.uid
		}
	}
	return found, nil
}

func (c *Controller) isGarbage(ctx context.Context, item Item) (object, bool, error) {
	o, err := c.collector.backend.get(ctx, item)
	if err != nil || o.uid == "" || o.deleting || len(o.references) == 0 {
		return o, false, err
	}
	v, err := c.collector.judge(ctx, item, o)
	return o, v.remove != "", err
}
