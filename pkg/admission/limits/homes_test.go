package limits

import (
	"net/http"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
	"github.com/shardplane/shardplane/pkg/tenancy/toplevel"
)

// stored is the usage of owners, one of which uses most.
type stored struct {
	used  toplevel.Usage
	known bool
	most  string
}

func (s stored) Usage(string) (toplevel.Usage, bool) { return s.used, s.known }
func (s stored) UsesMost(owner string) bool          { return s.most == owner }

// TestOwners checks the limits of homes, and that an almost full etcd first rejects growth of the owners that
// use most, but never of root and the system.
func TestOwners(t *testing.T) {
	workspace := &unstructured.Unstructured{Object: map[string]any{}}
	ended := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}
	used := func(objects, bytes, workspaces int64) toplevel.Usage {
		return toplevel.Usage{Amount: subtrees.Amount{Objects: objects, Bytes: bytes}, Workspaces: workspaces}
	}
	for name, tc := range map[string]struct {
		path                   string
		used                   toplevel.Usage
		own                    subtrees.Amount // limits of the home itself
		unknown, filling, full bool
		as                     user.Info
		resource               schema.GroupResource
		obj, old               runtime.Object
		want                   string
		code                   int
	}{
		"below all limits":                      {path: "user:alice:x", used: used(99, 999, 9), resource: workspaces, obj: workspace},
		"object limit of a home":                {path: "user:alice:x:y", used: used(100, 0, 0), resource: configMaps, obj: configMapOf(1), want: "user:alice and all workspaces below it have 100 objects on this shard, at most 100 allowed", code: http.StatusForbidden},
		"object limit of a home without a path": {path: "2hg5y7x:y", used: used(100, 0, 0), resource: configMaps, obj: configMapOf(1), want: "2hg5y7x and all workspaces below it", code: http.StatusForbidden},
		"byte limit of a home":                  {path: "user:alice", used: used(0, 1000, 0), resource: configMaps, obj: configMapOf(2), old: configMapOf(1), want: "have 1000 bytes", code: http.StatusForbidden},
		"shrinking update at the byte limit":    {path: "user:alice", used: used(0, 1000, 0), resource: configMaps, obj: configMapOf(1), old: configMapOf(2)},
		"workspace limit of a home":             {path: "user:alice", used: used(0, 0, 10), resource: workspaces, obj: workspace, want: "have 10 workspaces on this shard, at most 10 allowed", code: http.StatusForbidden},
		"other object at the workspace limit":   {path: "user:alice", used: used(0, 0, 10), resource: configMaps, obj: configMapOf(1)},
		"home with its own limits":              {path: "user:alice", used: used(100, 1000, 0), own: subtrees.Amount{Objects: 500, Bytes: 5000}, resource: configMaps, obj: configMapOf(1)},
		"system at the limits of a home":        {path: "user:alice", used: used(100, 1000, 10), as: theAPI, resource: configMaps, obj: configMapOf(1)},
		"workspace that is not a home":          {path: "root:org", used: used(100, 1000, 10), resource: workspaces, obj: workspace},
		"unknown usage":                         {path: "user:alice", used: used(100, 1000, 10), unknown: true, resource: configMaps, obj: configMapOf(1)},
		"largest owner while filling":           {path: "root:most:x", filling: true, resource: configMaps, obj: configMapOf(1), want: "root:most with all workspaces below it stores more", code: http.StatusInsufficientStorage},
		"shrinking update while filling":        {path: "root:most:x", filling: true, resource: configMaps, obj: configMapOf(1), old: configMapOf(2)},
		"administrator while filling":           {path: "root:most:x", filling: true, as: master, resource: configMaps, obj: configMapOf(1)},
		"other owner while filling":             {path: "root:org", filling: true, resource: configMaps, obj: configMapOf(1)},
		"other owner when full":                 {path: "root:org", filling: true, full: true, resource: configMaps, obj: configMapOf(1), want: "the shard is nearly full", code: http.StatusInsufficientStorage},
		"root when full":                        {path: "root", filling: true, full: true, resource: configMaps, obj: configMapOf(1)},
		"system logical cluster when full":      {path: "system:admin", filling: true, full: true, resource: configMaps, obj: configMapOf(1)},
		"shrinking update when full": {
			path: "root:org", full: true, resource: configMaps, obj: configMapOf(1), old: configMapOf(2),
			want: "the shard is nearly full", code: http.StatusInsufficientStorage,
		},
		"completed deletion when full": {path: "root:org", full: true, resource: configMaps, obj: ended, old: ended},
		"update of root when full":     {path: "root", full: true, resource: configMaps, obj: workspace, old: workspace},
	} {
		t.Run(name, func(t *testing.T) {
			lc := ready(nil)
			metav1.SetMetaDataAnnotation(&lc.ObjectMeta, core.LogicalClusterPathAnnotationKey, tc.path)
			cluster := logicalcluster.Name("one")
			if toplevel.Of(tc.path) == "" {
				cluster = logicalcluster.Name(tc.path)
			}
			s := state{full: tc.full, filling: tc.filling, clusters: map[logicalcluster.Name]*corev1alpha1.LogicalCluster{cluster: lc}}
			s.historyFull = tc.full
			p := NewLimits(Config{
				Usage: s, LogicalCluster: s.of, Homes: HomeLimits{Objects: 100, Bytes: 1000, Workspaces: 10},
				Owners: stored{used: tc.used, known: !tc.unknown, most: "root:most"},
				Subtrees: func(string) []*subtrees.Subtree {
					if tc.own == (subtrees.Amount{}) {
						return nil
					}
					return []*subtrees.Subtree{{Limit: subtrees.Limit{Path: toplevel.Of(tc.path), Most: tc.own}}}
				},
			})
			a := writeBy(tc.resource, "", tc.obj, tc.old, tc.as)
			err := p.Validate(request.WithClusterName(t.Context(), cluster), a, nil)
			requireOutcome(t, err, tc.want, tc.code)
		})
	}
}

func TestHomeLimits(t *testing.T) {
	limits := NewHomeLimits()
	require.Empty(t, limits.Validate())
	require.NotEmpty(t, (&HomeLimits{Workspaces: -1}).Validate())
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	limits.AddFlags(fs)
	require.NoError(t, fs.Parse([]string{"--" + homeObjectsFlag + "=7", "--" + homeBytesFlag + "=2Gi", "--" + homeWorkspacesFlag + "=8"}))
	require.Equal(t, HomeLimits{Objects: 7, Bytes: 2 << 30, Workspaces: 8}, limits)
}
