package workspace

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// worthTelling is how long the same thing has to keep a Workspace waiting before an
	// Event tells of it. What changes faster is progress, which conditions tell.
	worthTelling = 5 * time.Second
	// reasonWaiting is the reason of the Event where no condition says why.
	reasonWaiting = "WaitingForLogicalCluster"
)

// word is what an Event tells.
type word struct {
	kind, reason, message string
}

// words returns what is to be told about a Workspace by now, and when to look again, or 0.
func words(ws *tenancyv1alpha1.Workspace, now time.Time) (all []word, next time.Duration) {
	since := func(t time.Time, tell word) {
		if wait := t.Add(worthTelling).Sub(now); wait <= 0 {
			all = append(all, tell)
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	explained := false
	for _, c := range ws.Status.Conditions {
		if c.Status != corev1.ConditionFalse {
			continue
		}
		explained = true
		kind := corev1.EventTypeNormal
		if c.Severity == conditionsv1alpha1.ConditionSeverityError || c.Severity == conditionsv1alpha1.ConditionSeverityWarning {
			kind = corev1.EventTypeWarning
		}
		since(c.LastTransitionTime.Time, word{kind, c.Reason, c.Message})
	}
	if !explained && ws.Spec.Mount == nil && !tenancy.HasContent(ws.Status.Phase) {
		message := "the workspace has no logical cluster yet"
		if ws.Spec.Cluster != "" {
			message = fmt.Sprintf("logical cluster %s on shard %q is not ready yet", ws.Spec.Cluster, ws.Annotations[shardAnnotation])
		}
		since(ws.CreationTimestamp.Time, word{corev1.EventTypeNormal, reasonWaiting, message})
	}
	return all, next
}

// told remembers which words were told last of each Workspace that waits. It saves requests:
// who has forgotten tells again, which changes nothing.
type told struct {
	mu sync.Mutex
	by map[client.Key]map[word]types.UID
}

// fresh returns those of all words that were not told last time, and remembers all.
func (t *told) fresh(key client.Key, uid types.UID, all []word) (fresh []word) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.by[key]
	if len(all) == 0 {
		delete(t.by, key)
		return nil
	}
	now := make(map[word]types.UID, len(all))
	for _, w := range all {
		if now[w] = uid; before[w] != uid {
			fresh = append(fresh, w)
		}
	}
	if t.by == nil {
		t.by = map[client.Key]map[word]types.UID{}
	}
	t.by[key] = now
	return fresh
}

// eventIn returns the function that creates Events beside Workspaces.
func eventIn(local *client.Factory) func(ctx context.Context, ws *tenancyv1alpha1.Workspace, w word) error {
	return func(ctx context.Context, ws *tenancyv1alpha1.Workspace, w word) error {
		return events.Record(ctx, local.Cluster(logicalcluster.From(ws).Path()), events.Event{
			About: corev1.ObjectReference{
				APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Kind: "Workspace", Name: ws.Name, UID: ws.UID,
			},
			Component: Name, Type: w.kind, Reason: w.reason, Message: w.message,
		}, w)
	}
}
