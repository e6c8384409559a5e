package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

const (
	// maxConcurrent is the maximum number of concurrent requests.
	maxConcurrent = 8
	// pageSize is the page size of lists.
	pageSize = 500
)

// shardAnnotation is the annotation of a Workspace with the shard of its logical cluster.
//
//reference:none
const shardAnnotation = "core.kcp.io/shard"

// node is a workspace in a tree.
type node struct {
	name string
	// workspace is nil for the root of the tree.
	workspace *tenancyv1alpha1.Workspace
	// event is the latest Event of the workspace, if it is not ready.
	event    *corev1.Event
	children []*node
	// err is why the children could not be listed.
	err error
}

// walker lists workspaces, with limited concurrency.
type walker struct {
	clients *client.Factory
	slots   chan struct{}
	// events is true if the Events of workspaces that are not ready are listed.
	events bool

	mu sync.Mutex
	// unreachable are the errors of shards that failed to respond, to which no more requests are sent.
	unreachable map[string]error
}

func newWalker(s *session, events bool) *walker {
	return &walker{clients: s.clients, slots: make(chan struct{}, maxConcurrent), events: events, unreachable: map[string]error{}}
}

// walk returns the tree below a workspace, down to a depth; 0 means all.
func (w *walker) walk(ctx context.Context, path logicalcluster.Path, depth int) *node {
	n := &node{name: path.String()}
	w.below(ctx, n, path, depth)
	return n
}

func (w *walker) below(ctx context.Context, n *node, path logicalcluster.Path, depth int) {
	n.children, n.err = w.list(ctx, path, shardOf(n))
	if depth == 1 {
		return
	}
	var all sync.WaitGroup
	for _, child := range n.children {
		if cluster := logicalcluster.NewPath(child.workspace.Spec.Cluster); hasContent(child.workspace) {
			all.Go(func() { w.below(ctx, child, cluster, depth-1) })
		}
	}
	all.Wait()
}

// hasContent reports whether a workspace may have children that the user can list.
func hasContent(ws *tenancyv1alpha1.Workspace) bool {
	switch ws.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseUnavailable:
		return false
	default:
		return ws.Spec.Cluster != "" && ws.Spec.Mount == nil
	}
}

// why returns why a workspace is not ready: the messages of its conditions, and the latest Event if its reason differs.
func why(n *node) string {
	if n.workspace == nil || !waits(n.workspace) {
		return ""
	}
	var messages []string
	reasons := map[string]bool{}
	for _, c := range n.workspace.Status.Conditions {
		if c.Status == corev1.ConditionTrue || c.Reason == "" && c.Message == "" {
			continue
		}
		reasons[c.Reason] = true
		messages = append(messages, withReason(c.Reason, c.Message))
	}
	if n.event != nil && !reasons[n.event.Reason] {
		messages = append(messages, "Event "+withReason(n.event.Reason, n.event.Message))
	}
	return strings.Join(messages, "; ")
}

func withReason(reason, message string) string {
	message = oneLine(message)
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}

// list returns the children of a workspace on a shard, sorted by name.
func (w *walker) list(ctx context.Context, path logicalcluster.Path, shard string) (nodes []*node, err error) {
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := w.recordError(shard, nil); err != nil {
		return nil, err
	}
	scope := w.clients.Cluster(path)
	waiting := false
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := kinds.Workspaces.In(scope).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return nil, nil // the type of the workspace has no children
		}
		if err != nil {
			return nodes, w.recordError(shard, err)
		}
		for i := range page.Items {
			ws := &page.Items[i]
			nodes = append(nodes, &node{name: ws.Name, workspace: ws})
			waiting = waiting || waits(ws)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	if waiting && w.events {
		w.addEvents(ctx, scope, nodes)
	}
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	return nodes, nil
}

// recordError records an error of a shard, unless it is nil or Forbidden, and returns the first error of the shard.
func (w *walker) recordError(shard string, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if first := w.unreachable[shard]; first != nil {
		return first
	}
	if err != nil && shard != "" && !apierrors.IsForbidden(err) {
		w.unreachable[shard] = err
	}
	return err
}

// addEvents adds the latest Events to workspaces that are not ready, if the user has access to Events.
func (w *walker) addEvents(ctx context.Context, scope client.Scope, nodes []*node) {
	events, err := eventsOf(ctx, scope, "")
	if err != nil {
		return
	}
	last := map[string]*corev1.Event{}
	for i := range events {
		last[events[i].InvolvedObject.Name] = &events[i]
	}
	for _, n := range nodes {
		if event := last[n.name]; event != nil && event.InvolvedObject.UID == n.workspace.UID && waits(n.workspace) {
			n.event = event
		}
	}
}

// visit calls f for a node and its descendants. tenant is the workspace below root that contains the node.
func (n *node) visit(tenant string, f func(n *node, tenant string)) {
	f(n, tenant)
	for _, child := range n.children {
		child.visit(cmp.Or(tenant, child.name), f)
	}
}

// shardOf returns the shard of a workspace, or "" if it is not known.
func shardOf(n *node) string {
	if n.workspace == nil {
		if n.name == core.RootCluster.String() {
			return corev1alpha1.RootShard
		}
		return ""
	}
	return n.workspace.Annotations[shardAnnotation]
}

// cannotList returns a one-line message for an error of a list.
func cannotList(err error) string {
	switch {
	case err == nil:
		return ""
	case apierrors.IsForbidden(err):
		return "no permission to list child workspaces"
	default:
		return fmt.Sprintf("failed to list child workspaces: %s", oneLine(err.Error()))
	}
}

// waits reports whether a workspace is not ready or is being deleted.
func waits(ws *tenancyv1alpha1.Workspace) bool {
	return ws.DeletionTimestamp != nil || ws.Status.Phase != corev1alpha1.LogicalClusterPhaseReady
}

var eventResource = client.DefineResource[corev1.Event, corev1.EventList](corev1.SchemeGroupVersion, "events")

// eventsOf returns the Events of a workspace, or of all workspaces in a logical cluster if name is empty, sorted by time.
func eventsOf(ctx context.Context, scope client.Scope, name string) ([]corev1.Event, error) {
	selected := fields.Set{"involvedObject.kind": "Workspace"}
	if name != "" {
		selected["involvedObject.name"] = name
	}
	list, err := eventResource.InNamespace(scope, metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: selected.AsSelector().String()})
	if err != nil {
		return nil, fmt.Errorf("listing the Events in %s: %w", scope, err)
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return lastSeen(&a).Time.Compare(lastSeen(&b).Time) })
	return list.Items, nil
}

// lastSeen is when an Event was last observed.
func lastSeen(e *corev1.Event) metav1.Time {
	switch {
	case e.Series != nil:
		return metav1.NewTime(e.Series.LastObservedTime.Time)
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	case !e.EventTime.IsZero():
		return metav1.NewTime(e.EventTime.Time)
	default:
		return e.CreationTimestamp
	}
}
