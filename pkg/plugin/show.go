package plugin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		return renderShards(shards.Items, newWalker(s, false).walk(ctx, core.RootCluster.Path(), -1)), nil
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
		l := of[shard.Name]
		if l == nil {
			l = &load{}
		}
		reported := "<unknown>"
		if load, known := shardload.OfShard(shard); known {
			reported = strings.Join(load.Words(), ", ")
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
	depth := t.Depth
	if depth <= 0 {
		depth = -1
	}
	return t.show(ctx, out, errOut, func(ctx context.Context) ([]byte, error) {
		root := newWalker(s, true).walk(ctx, path, depth)
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
		message := why(child)
		if message == "" {
			message = cannotList(child.err)
		}
		_, _ = plaintext.Fprintf(out, "%s%s%s\t%s\t%s\t%s\t%s\t%s\n", indent, branch, child.name, kind, phase, shardOf(child), ws.Spec.Cluster, message)
		renderChildren(out, child, indent+below)
	}
}
