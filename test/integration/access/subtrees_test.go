package access

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestSubtreeLimits checks limits, in bytes and objects, that workspaces on two shards share.
func TestSubtreeLimits(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	e.WorkspaceOn("root", "limitless", "shard-1")
	t.Run("bytes", func(t *testing.T) {
		testSubtreeLimit(t, e, subtreeLimit{top: "limited", annotation: "max-subtree-bytes", most: `"4Mi"`, message: "at most 4194304 allowed", text: strings.Repeat("x", 256<<10)})
	})
	t.Run("objects", func(t *testing.T) {
		testSubtreeLimit(t, e, subtreeLimit{top: "counted", annotation: "max-subtree-objects", most: `"100"`, message: "at most 100 allowed"})
	})
}

// subtreeLimit is a limit for a workspace and those below it.
type subtreeLimit struct {
	top, annotation, most, message string
	// text is the content of each object.
	text string
}

func testSubtreeLimit(t *testing.T, e *kit.Env, l subtreeLimit) {
	top := "root:" + l.top
	far, near := top+":far", top+":far:near"
	e.WorkspaceOn("root", l.top, "root")
	e.WorkspaceOn(top, "far", "shard-1")
	e.WorkspaceOn(far, "near", "root")
	limit := func(text string) {
		t.Helper()
		_, err := kinds.LogicalClusters.In(e.ProxyClient.Cluster(kit.Path(top))).Patch(t.Context(), corev1alpha1.LogicalClusterName, kit.MergePatch,
			[]byte(`{"metadata":{"annotations":{"core.shardplane.io/`+l.annotation+`":`+text+`}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	create := func(workspace, name string) error {
		_, err := kinds.ConfigMaps.InNamespace(e.ProxyClient.Cluster(kit.Path(workspace)), "default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"text": l.text}}, metav1.CreateOptions{})
		return err
	}
	refused := func(workspace string) {
		t.Helper()
		began := time.Now()
		n := 0
		e.Eventually(workspace+" is full", func() bool {
			n++
			err := create(workspace, fmt.Sprintf("more-%d", n))
			if err == nil {
				return false
			}
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, "the workspace "+top+" and all workspaces below it")
			require.ErrorContains(t, err, l.message)
			return true
		})
		t.Logf("%s is full after %v and %d objects", workspace, time.Since(began).Round(time.Millisecond), n-1)
	}

	limit(l.most)
	refused(far)
	refused(near) // on the other shard
	refused(top)
	require.NoError(t, create("root:limitless", l.top))
	for _, workspace := range []string{top, far, near} {
		err := kinds.ConfigMaps.InNamespace(e.ProxyClient.Cluster(kit.Path(workspace)), "default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		require.NoError(t, err)
	}
	e.Eventually("objects are accepted again", func() bool { return create(top, "late") == nil })
	limit(`"1"`)
	e.Eventually("the limit applies on the other shard", func() bool { return create(far, "any") != nil })
	limit("null")
	e.Eventually("the limit is removed", func() bool { return create(far, "last") == nil })
}
