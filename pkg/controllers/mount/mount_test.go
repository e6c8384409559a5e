package mount

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/test/documented"
)

func link(url, phase string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"URL": url, "phase": phase}}}
}

// TestTarget: mounted objects only need status.URL and status.phase.
func TestTarget(t *testing.T) {
	ref := tenancyv1alpha1.ObjectReference{APIVersion: "example.org/v1", Kind: "Link", Name: "l"}
	deleting := link("https://x", "Ready")
	deleting.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
	for name, try := range map[string]struct {
		obj  *unstructured.Unstructured
		want string
	}{
		"ready":      {link("https://x:1/y", "Ready"), ""},
		"connecting": {link("https://x", "Connecting"), `the phase of Link "l" is "Connecting"`},
		"no phase":   {link("https://x", ""), "the phase"},
		"no URL":     {link("", "Ready"), "has no status.URL"},
		"http":       {link("http://x", "Ready"), "is not a URL such as https://"},
		"no host":    {link("https:///x", "Ready"), "is not a URL"},
		"only port":  {link("https://:443/x", "Ready"), "is not a URL"},
		"user":       {link("https://a:b@x", "Ready"), "is not a URL"},
		"query":      {link("https://x?", "Ready"), "is not a URL"},
		"fragment":   {link("https://x#y", "Ready"), "is not a URL"},
		"long":       {link("https://x/"+strings.Repeat("x", maxURL), "Ready"), "is not a URL"},
		"deleting":   {deleting, "is being deleted"},
		"no status":  {&unstructured.Unstructured{Object: map[string]any{}}, "the phase"},
	} {
		t.Run(name, func(t *testing.T) {
			url, p := target(try.obj, ref)
			ws := &tenancyv1alpha1.Workspace{Spec: tenancyv1alpha1.WorkspaceSpec{URL: "https://before"}}
			got := mounted(ws, url, p)
			require.Equal(t, string(got.Status.Phase), got.Labels[tenancyv1alpha1.WorkspacePhaseLabel])
			require.Empty(t, ws.Status.Phase)
			if try.want == "" {
				require.Nil(t, p)
				require.Equal(t, "https://x:1/y", got.Spec.URL)
				require.EqualValues(t, "Ready", got.Status.Phase)
				require.True(t, conditions.IsTrue(got, tenancyv1alpha1.MountConditionReady))
				return
			}
			require.Equal(t, "https://before", got.Spec.URL)
			require.EqualValues(t, "Unavailable", got.Status.Phase)
			require.Equal(t, tenancyv1alpha1.MountObjectNotReadyReason, conditions.GetReason(got, tenancyv1alpha1.MountConditionReady))
			require.Contains(t, conditions.GetMessage(got, tenancyv1alpha1.MountConditionReady), try.want)
		})
	}
	inNamespace := ref
	inNamespace.Namespace = "default"
	require.Nil(t, misnamed(ref, storage.Kind{}, true))
	require.Nil(t, misnamed(inNamespace, storage.Kind{Namespaced: true}, true))
	for want, p := range map[string]*problem{
		"the kind Link of example.org/v1 is not served in this workspace": misnamed(ref, storage.Kind{}, false),
		"is namespaced":     misnamed(ref, storage.Kind{Namespaced: true}, true),
		"is not namespaced": misnamed(inNamespace, storage.Kind{}, true),
	} {
		require.Equal(t, tenancyv1alpha1.MountObjectNotFoundReason, p.reason)
		require.Contains(t, p.message, want)
	}
}

type queue []client.Key

func (q *queue) Add(key client.Key) { *q = append(*q, key) }
func (*queue) Drop(client.Key)      {}

func (q *queue) AddAfter(key client.Key, after time.Duration) {
	if after == 0 {
		q.Add(key)
	}
}

func (q *queue) take() (taken []client.Key) {
	taken, *q = *q, nil
	return taken
}

// TestFollower: exactly the mounts of a changed object are requeued, and those of a logical cluster after changes of its
// served APIs.
func TestFollower(t *testing.T) {
	q, listening := &queue{}, 0
	var changed func(key string)
	f := &follower{listen: func(f func(key string)) func() {
		changed = f
		listening++
		return func() { listening-- }
	}}
	stop, err := f.source(t.Context(), q)
	require.NoError(t, err)
	a, b, c := client.Key{Cluster: "one", Name: "a"}, client.Key{Cluster: "one", Name: "b"}, client.Key{Cluster: "two", Name: "c"}
	in := func(prefix string, cluster logicalcluster.Name, name string) string {
		return storage.Key(prefix, "", cluster, "", name)
	}
	const links, others = "/example.org/links/", "/example.org/others/"
	for _, mount := range []client.Key{a, b, c} {
		f.follow(mount, "")
	}
	f.follow(a, in(links, "one", "x"))
	f.follow(b, in(links, "one", "y"))
	f.follow(c, in(links, "two", "x"))
	changed(in(links, "one", "x"))
	require.Equal(t, []client.Key{a}, q.take())
	changed(in(others, "one", "x"))
	require.Empty(t, q.take())
	changed("")
	require.ElementsMatch(t, []client.Key{a, b, c}, q.take())
	changed(in(definitions, "two", "d"))
	require.Equal(t, []client.Key{c}, q.take())

	// Mounts of unserved kinds are requeued when the served APIs change.
	f.follow(a, "")
	changed(in(links, "one", "x"))
	require.Empty(t, q.take())
	f.redefined(q, "one")
	require.ElementsMatch(t, []client.Key{a, b}, q.take())

	f.follow(a, in(others, "one", "x"))
	changed(in(others, "one", "x"))
	require.Equal(t, []client.Key{a}, q.take())
	for _, mount := range []client.Key{a, b, c} {
		f.mounts.Forget(mount)
	}
	changed("")
	f.redefined(q, "one")
	require.Empty(t, q.take())
	require.Zero(t, f.mounts.Len())
	stop()
	require.Zero(t, listening)
}

func TestDocumented(t *testing.T) {
	ws := &tenancyv1alpha1.Workspace{}
	require.ElementsMatch(t, documented.Conditions(t, "Workspace with a mount"), slices.Concat(
		documented.Reported(mounted(ws, "", notFound("it"))), documented.Reported(mounted(ws, "", notReady("it")))))
}
