package plugin

import (
	"bytes"
	"context"
	"fmt"
	"io"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"

	"github.com/shardplane/shardplane/pkg/plaintext"
)

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
