package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/plaintext"
)

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
	text := why(&node{workspace: ws})
	if text == "" {
		return "its phase is " + string(ws.Status.Phase)
	}
	return text
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
