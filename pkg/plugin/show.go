package plugin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/plaintext"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// Shards shows the shards.
type Shards struct {
	*Options
	Watch
}

// Run shows the shards, repeatedly if they are watched.
func (t Shards) Run(ctx context.Context, out, errOut io.Writer) error {
	s, err := t.open()
	if err != nil {
		return err
	}
	return t.show(ctx, out, errOut, func(ctx context.Context) ([]byte, error) {
		shards, err := kinds.Shards.In(s.clients.Cluster(core.RootCluster.Path())).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("listing the Shard objects in root: %w", err)
		}
		return renderShards(shards.Items, newWalker(s, false).walk(ctx, core.RootCluster.Path(), 0)), nil
	})
}

// load summarizes the workspaces on a shard.
type load struct {
	workspaces, waiting int
	tenants             map[string]bool
	// succeeded and failed are the numbers of requests for its logical clusters.
	succeeded, failed int
}

// loads summarizes a tree by shard, and returns the number of workspaces whose children could not be listed.
func loads(root *node) (of map[string]*load, unseen int) {
	of = map[string]*load{}
	root.visit("", func(n *node, tenant string) {
		shard := shardOf(n)
		l := of[shard]
		if l == nil {
			l = &load{tenants: map[string]bool{}}
			of[shard] = l
		}
		if n.workspace != nil {
			l.workspaces++
			l.tenants[tenant] = true
			if waits(n.workspace) {
				l.waiting++
			}
		}
		switch {
		case n.err == nil || apierrors.IsForbidden(n.err):
			if n.workspace == nil || hasContent(n.workspace) {
				l.succeeded++
			}
		default:
			l.failed++
		}
		if n.err != nil {
			unseen++
		}
	})
	return of, unseen
}

// healthOf returns Ready, NotReady or Unknown, and details.
func healthOf(shard *corev1alpha1.Shard, l *load) string {
	health := []string{readiness(shard, l)}
	if shard.DeletionTimestamp != nil {
		health = append(health, "Deleting")
	}
	if unreachable(l) {
		health = append(health, "Unreachable")
	}
	for _, c := range shard.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionFalse:
		case c.Type == conditionsv1alpha1.ReadyCondition && c.Reason == "": // NotReady is sufficient
		case c.Type == conditionsv1alpha1.ReadyCondition:
			health = append(health, c.Reason)
		default:
			health = append(health, string(c.Type)+"=False")
		}
	}
	if load, known := shardload.OfShard(shard); known && load.FullOf() != "" {
		health = append(health, "Full")
	}
	if _, cordoned := shard.Annotations[tenancy.UnschedulableAnnotation]; cordoned {
		health = append(health, "SchedulingDisabled")
	}
	return strings.Join(health, ",")
}

// readiness depends on the requests for logical clusters of the shard and on its condition Ready.
func readiness(shard *corev1alpha1.Shard, l *load) string {
	switch {
	case unreachable(l) || conditions.IsFalse(shard, conditionsv1alpha1.ReadyCondition):
		return "NotReady"
	case l.succeeded > 0 || conditions.IsTrue(shard, conditionsv1alpha1.ReadyCondition):
		return "Ready"
	default:
		return "Unknown"
	}
}

// unreachable reports whether all requests failed.
func unreachable(l *load) bool { return l.failed > 0 && l.succeeded == 0 }

func renderShards(shards []corev1alpha1.Shard, root *node) []byte {
	of, unseen := loads(root)
	slices.SortFunc(shards, func(a, b corev1alpha1.Shard) int { return strings.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	table := newTable(&out)
	_, _ = fmt.Fprintln(table, "NAME\tHEALTH\tTENANTS\tWORKSPACES\tNOT READY\tLOAD\tREGION\tURL")
	for i := range shards {
		shard := &shards[i]
		l := cmp.Or(of[shard.Name], &load{})
		reported := "<unknown>"
		if load, known := shardload.OfShard(shard); known {
			reported = strings.Join(load.Descriptions(), ", ")
		}
		_, _ = plaintext.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", shard.Name, healthOf(shard, l), len(l.tenants), l.workspaces, l.waiting, reported, shard.Labels["region"], shard.Spec.BaseURL)
		delete(of, shard.Name)
	}
	if l := of[""]; l != nil && l.workspaces > 0 {
		_, _ = fmt.Fprintf(table, "<none>\t\t%d\t%d\t%d\t\t\t\n", len(l.tenants), l.workspaces, l.waiting)
	}
	_ = table.Flush()
	if unseen > 0 {
		_, _ = fmt.Fprintf(&out, "\nThe numbers are incomplete: the children of %d workspaces could not be listed. For the reasons, use kubectl shardplane tree root.\n", unseen)
	}
	return trimLines(out.Bytes())
}

// Tree shows the workspaces below one.
type Tree struct {
	*Options
	Watch

	// Path is the workspace, in the format of resolve.
	Path string
	// Depth is the number of levels; 0 means all.
	Depth int
}

// Run shows the tree, repeatedly if it is watched.
func (t Tree) Run(ctx context.Context, out, errOut io.Writer) error {
	s, err := t.open()
	if err != nil {
		return err
	}
	path, err := s.resolve(t.Path)
	if err != nil {
		return err
	}
	return t.show(ctx, out, errOut, func(ctx context.Context) ([]byte, error) {
		root := newWalker(s, true).walk(ctx, path, t.Depth)
		if root.err != nil {
			return nil, s.explain(ctx, path, root.err)
		}
		return renderTree(root), nil
	})
}

func renderTree(root *node) []byte {
	var out bytes.Buffer
	table := newTable(&out)
	_, _ = fmt.Fprintln(table, "NAME\tTYPE\tPHASE\tSHARD\tCLUSTER\tMESSAGE")
	_, _ = plaintext.Fprintf(table, "%s\t\t\t%s\t\t%s\n", root.name, shardOf(root), cannotList(root.err))
	renderChildren(table, root, "")
	_ = table.Flush()
	return trimLines(out.Bytes())
}

func renderChildren(out io.Writer, n *node, indent string) {
	for i, child := range n.children {
		branch, below := "├── ", "│   "
		if i == len(n.children)-1 {
			branch, below = "└── ", "    "
		}
		ws := child.workspace
		kind := ""
		switch {
		case ws.Spec.Mount != nil:
			kind = "mount"
		case ws.Spec.Type != nil:
			kind = string(ws.Spec.Type.Name)
		}
		phase := string(ws.Status.Phase)
		if ws.DeletionTimestamp != nil {
			phase = string(corev1alpha1.LogicalClusterPhaseDeleting)
		}
		message := cmp.Or(why(child), cannotList(child.err))
		_, _ = plaintext.Fprintf(out, "%s%s%s\t%s\t%s\t%s\t%s\t%s\n", indent, branch, child.name, kind, phase, shardOf(child), ws.Spec.Cluster, message)
		renderChildren(out, child, indent+below)
	}
}

// Describe shows the state of a workspace, and why it is not ready.
type Describe struct {
	*Options

	// Path is the workspace, in the format of resolve.
	Path string
}

// Run writes the description to out.
func (d Describe) Run(ctx context.Context, out io.Writer) error {
	s, err := d.open()
	if err != nil {
		return err
	}
	path, err := s.resolve(d.Path)
	if err != nil {
		return err
	}
	parent, ws, err := s.workspace(ctx, path)
	if err != nil {
		return err
	}
	events, err := eventsOf(ctx, parent, ws.Name)
	text := renderWorkspace(path, ws, time.Now())
	if err != nil {
		_, _ = plaintext.Fprintf(text, "Events:  %s\n", oneLine(err.Error()))
	} else {
		renderEvents(text, ws, events, time.Now())
	}
	_, err = out.Write(trimLines(text.Bytes()))
	return err
}

// workspace returns the Workspace at a path, and the scope of its parent.
func (s *session) workspace(ctx context.Context, path logicalcluster.Path) (in client.Scope, ws *tenancyv1alpha1.Workspace, err error) {
	parent, name := path.Split()
	if parent.Empty() {
		return in, nil, fmt.Errorf("%s is not a child workspace, so it has no conditions and Events", path)
	}
	in = s.clients.Cluster(parent)
	ws, err = kinds.Workspaces.In(in).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return in, nil, fmt.Errorf("workspace %s not found in %s", name, parent)
	case apierrors.IsForbidden(err):
		return in, nil, fmt.Errorf("%s does not exist, or you have no access to its content: %w", parent, err)
	case err != nil:
		return in, nil, fmt.Errorf("getting the workspace %s: %w", path, err)
	}
	return in, ws, nil
}

// explain returns an error with the reason why a workspace is not accessible, as far as its parent shows it.
func (s *session) explain(ctx context.Context, path logicalcluster.Path, why error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if errors.Is(why, context.DeadlineExceeded) {
		return fmt.Errorf("workspace %s: no response within --request-timeout: %w", path, why)
	}
	if !apierrors.IsForbidden(why) && !apierrors.IsNotFound(why) && !apierrors.IsServiceUnavailable(why) {
		return fmt.Errorf("workspace %s: %w", path, why)
	}
	_, ws, err := s.workspace(ctx, path)
	switch {
	case err == nil && waits(ws):
		return fmt.Errorf("workspace %s is not ready: %s", path, whyOf(ws))
	case err != nil && apierrors.IsForbidden(why) && path != core.RootCluster.Path():
		return fmt.Errorf("workspace %s does not exist, or you have no access to it", path)
	default:
		return fmt.Errorf("workspace %s: %w", path, why)
	}
}

// whyOf is why without Events, but never empty.
func whyOf(ws *tenancyv1alpha1.Workspace) string {
	return cmp.Or(why(&node{workspace: ws}), "its phase is "+string(ws.Status.Phase))
}

func renderWorkspace(path logicalcluster.Path, ws *tenancyv1alpha1.Workspace, now time.Time) *bytes.Buffer {
	var out bytes.Buffer
	table := newTable(&out)
	row := func(name, value string) {
		if value != "" {
			_, _ = plaintext.Fprintf(table, "%s:\t%s\n", name, value)
		}
	}
	row("Path", path.String())
	row("Phase", string(ws.Status.Phase))
	if waits(ws) {
		row("Message", whyOf(ws))
	}
	row("Shard", ws.Annotations[shardAnnotation])
	row("Logical cluster", ws.Spec.Cluster)
	row("URL", ws.Spec.URL)
	if ws.Spec.Type != nil {
		row("Type", logicalcluster.NewPath(ws.Spec.Type.Path).Join(string(ws.Spec.Type.Name)).String())
	}
	if ws.Spec.Mount != nil {
		ref := ws.Spec.Mount.Reference
		row("Mount", fmt.Sprintf("%s %s", ref.Kind, ref.Name))
	}
	row("Age", age(ws.CreationTimestamp, now))
	if ws.DeletionTimestamp != nil {
		row("Deleted", age(*ws.DeletionTimestamp, now)+" ago")
	}
	_ = table.Flush()
	if len(ws.Status.Conditions) > 0 {
		_, _ = fmt.Fprintln(&out, "Conditions:")
		table = newTable(&out)
		_, _ = fmt.Fprintln(table, "  TYPE\tSTATUS\tSINCE\tREASON\tMESSAGE")
		for _, c := range ws.Status.Conditions {
			_, _ = plaintext.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, age(c.LastTransitionTime, now), c.Reason, oneLine(c.Message))
		}
		_ = table.Flush()
	}
	return &out
}

func renderEvents(out io.Writer, ws *tenancyv1alpha1.Workspace, events []corev1.Event, now time.Time) {
	table := newTable(out)
	empty := true
	for i := range events {
		e := &events[i]
		if e.InvolvedObject.UID != ws.UID {
			continue // an Event of an earlier workspace with this name
		}
		if empty {
			_, _ = fmt.Fprintln(table, "Events:\n  SINCE\tTYPE\tREASON\tMESSAGE")
		}
		empty = false
		_, _ = plaintext.Fprintf(table, "  %s\t%s\t%s\t%s\n", age(lastSeen(e), now), e.Type, e.Reason, oneLine(e.Message))
	}
	_ = table.Flush()
}

func age(since metav1.Time, now time.Time) string { return duration.HumanDuration(now.Sub(since.Time)) }
