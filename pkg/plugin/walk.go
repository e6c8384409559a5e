package plugin

import (
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

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

const (
	// atOnce is how many workspaces are asked at the same time.
	atOnce = 8
	// pageSize is how many workspaces one request lists.
	pageSize = 500
)

// shardAnnotation says on a Workspace which shard has its logical cluster.
const shardAnnotation = "core.kcp.io/shard"

// node is a workspace in a tree.
type node struct {
	name string
	// workspace is nil for the root of the tree.
	workspace *tenancyv1alpha1.Workspace
	// event is the last one about the workspace, if it waits.
	event    *corev1.Event
	children []*node
	// err is why the children could not be listed.
	err error
}

// walker lists workspaces, some at a time.
type walker struct {
	clients *client.Factory
	seats   chan struct{}
	// events asks for Events about workspaces that wait.
	events bool

	mu sync.Mutex
	// away are shards that have not answered, and what came instead: they are not asked again.
	away map[string]error
}

func newWalker(s *session, events bool) *walker {
	return &walker{clients: s.clients, seats: make(chan struct{}, atOnce), events: events, away: map[string]error{}}
}

// walk returns what is below a workspace, down to a depth; below 0 is any.
func (w *walker) walk(ctx context.Context, path logicalcluster.Path, depth int) *node {
	n := &node{name: path.String()}
	w.below(ctx, n, path, depth)
	return n
}

func (w *walker) below(ctx context.Context, n *node, path logicalcluster.Path, depth int) {
	if depth == 0 {
		return
	}
	n.children, n.err = w.list(ctx, path, shardOf(n))
	var all sync.WaitGroup
	for _, child := range n.children {
		if cluster := logicalcluster.NewPath(child.workspace.Spec.Cluster); hasContent(child.workspace) {
			all.Go(func() { w.below(ctx, child, cluster, depth-1) })
		}
	}
	all.Wait()
}

// hasContent reports whether a workspace may have others below it, that can be seen.
func hasContent(ws *tenancyv1alpha1.Workspace) bool {
	switch ws.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseUnavailable:
		return false
	default:
		return ws.Spec.Cluster != "" && ws.Spec.Mount == nil
	}
}

// why says what a workspace waits for: what its conditions say, and the last Event if that says
// something else.
func why(n *node) string {
	if n.workspace == nil || !waits(n.workspace) {
		return ""
	}
	var said []string
	reasons := map[string]bool{}
	for _, c := range n.workspace.Status.Conditions {
		if c.Status == corev1.ConditionTrue || c.Reason == "" && c.Message == "" {
			continue
		}
		reasons[c.Reason] = true
		said = append(said, says(c.Reason, c.Message))
	}
	if n.event != nil && !reasons[n.event.Reason] {
		said = append(said, "Event "+says(n.event.Reason, n.event.Message))
	}
	return strings.Join(said, "; ")
}

func says(reason, message string) string {
	message = oneLine(message)
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}

// list returns the workspaces in one, which a shard has, by name.
func (w *walker) list(ctx context.Context, path logicalcluster.Path, shard string) (nodes []*node, err error) {
	select {
	case w.seats <- struct{}{}:
		defer func() { <-w.seats }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := w.isAway(shard, nil); err != nil {
		return nil, err
	}
	scope := w.clients.Cluster(path)
	waiting := false
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := kinds.Workspaces.In(scope).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return nil, nil // its type has no workspaces
		}
		if err != nil {
			return nodes, w.isAway(shard, err)
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

// isAway notes that a shard has answered with an error, unless that is nil or its answer was to
// us, and returns the first one that it has.
func (w *walker) isAway(shard string, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if first := w.away[shard]; first != nil {
		return first
	}
	if err != nil && shard != "" && !apierrors.IsForbidden(err) {
		w.away[shard] = err
	}
	return err
}

// addEvents gives workspaces that wait the last Event about them. Conditions say what is to be
// known where nobody may see Events.
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

// visit calls f for a node and all below it. tenant is the workspace below root that it is in.
func (n *node) visit(tenant string, f func(n *node, tenant string)) {
	f(n, tenant)
	for _, child := range n.children {
		of := tenant
		if of == "" {
			of = child.name
		}
		child.visit(of, f)
	}
}

// shardOf returns the shard of a workspace, as far as it is known.
func shardOf(n *node) string {
	if n.workspace == nil {
		if n.name == core.RootCluster.String() {
			return corev1alpha1.RootShard
		}
		return ""
	}
	return n.workspace.Annotations[shardAnnotation]
}

// cannotList says in a line why something could not be listed.
func cannotList(err error) string {
	switch {
	case err == nil:
		return ""
	case apierrors.IsForbidden(err):
		return "you may not list the workspaces in it"
	default:
		return fmt.Sprintf("the workspaces in it cannot be listed: %s", oneLine(err.Error()))
	}
}
