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
	// noticeDelay is the minimum duration of a state before an Event reports it. Shorter states are visible in conditions.
	noticeDelay = 5 * time.Second
	// reasonWaiting is the reason of the Event if no condition explains the delay.
	reasonWaiting = "WaitingForLogicalCluster"
)

type notice struct {
	kind, reason, message string
}

// notices returns the content of the Events that are due, and the time until the next one is due, or 0.
func notices(ws *tenancyv1alpha1.Workspace, now time.Time) (all []notice, next time.Duration) {
	since := func(t time.Time, report notice) {
		if wait := t.Add(noticeDelay).Sub(now); wait <= 0 {
			all = append(all, report)
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
		since(c.LastTransitionTime.Time, notice{kind, c.Reason, c.Message})
	}
	if !explained && ws.Spec.Mount == nil && !tenancy.HasContent(ws.Status.Phase) {
		message := "the workspace has no logical cluster yet"
		if ws.Spec.Cluster != "" {
			message = fmt.Sprintf("logical cluster %s on shard %q is not ready yet", ws.Spec.Cluster, ws.Annotations[shardAnnotation])
		}
		since(ws.CreationTimestamp.Time, notice{corev1.EventTypeNormal, reasonWaiting, message})
	}
	return all, next
}

// reported contains the last notices of each Workspace, to save requests: repeated Events have no effect.
type reported struct {
	mu sync.Mutex
	by map[client.Key]map[notice]types.UID
}

// fresh returns the notices that were not reported before, and remembers all.
func (t *reported) fresh(key client.Key, uid types.UID, all []notice) (fresh []notice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.by[key]
	if len(all) == 0 {
		delete(t.by, key)
		return nil
	}
	now := make(map[notice]types.UID, len(all))
	for _, w := range all {
		if now[w] = uid; before[w] != uid {
			fresh = append(fresh, w)
		}
	}
	if t.by == nil {
		t.by = map[client.Key]map[notice]types.UID{}
	}
	t.by[key] = now
	return fresh
}

func eventIn(local *client.Factory) func(ctx context.Context, ws *tenancyv1alpha1.Workspace, w notice) error {
	return func(ctx context.Context, ws *tenancyv1alpha1.Workspace, w notice) error {
		return events.Record(ctx, local.Cluster(logicalcluster.From(ws).Path()), events.Event{
			About: corev1.ObjectReference{
				APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Kind: "Workspace", Name: ws.Name, UID: ws.UID,
			},
			Component: Name, Type: w.kind, Reason: w.reason, Message: w.message,
		}, w)
	}
}
