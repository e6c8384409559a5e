package reserved

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// TestStatusByAdministrators checks the transitions that administrators may write.
func TestStatusByAdministrators(t *testing.T) {
	in := func(phase corev1alpha1.LogicalClusterPhaseType, initializers, terminators []string) *unstructured.Unstructured {
		list := func(of []string) []any {
			all := []any{}
			for _, id := range of {
				all = append(all, id)
			}
			return all
		}
		return object(map[string]any{
			"spec":   map[string]any{"initializers": list([]string{"a", "b"})},
			"status": map[string]any{"phase": string(phase), "initializers": list(initializers), "terminators": list(terminators)},
		})
	}
	moved := in(ready, nil, nil)
	require.NoError(t, unstructured.SetNestedField(moved.Object, "https://elsewhere", "status", "URL"))
	withCondition := in(ready, nil, nil)
	require.NoError(t, unstructured.SetNestedSlice(withCondition.Object, []any{map[string]any{"type": "Mine"}}, "status", "conditions"))
	const shrink = "entries of status.initializers can only be removed, and only while status.phase is Initializing"
	for name, test := range map[string]struct {
		before, after runtime.Object
		denied        string
	}{
		"unchanged":                           {in(initializing, []string{"a", "b"}, nil), in(initializing, []string{"a", "b"}, nil), ""},
		"condition added":                     {in(ready, nil, nil), withCondition, ""},
		"initializer removed":                 {in(initializing, []string{"a", "b"}, nil), in(initializing, []string{"b"}, nil), ""},
		"last initializer removed":            {in(initializing, []string{"b"}, nil), in(initializing, nil, nil), ""},
		"all initializers removed, and Ready": {in(initializing, []string{"a", "b"}, nil), in(ready, nil, nil), ""},
		"Ready too early":                     {in(initializing, []string{"a", "b"}, nil), in(ready, []string{"a"}, nil), "status.phase must be Initializing until status.initializers is empty"},
		"initializer added":                   {in(initializing, []string{"a"}, nil), in(initializing, []string{"a", "c"}, nil), shrink},
		"initializer replaced":                {in(initializing, []string{"a"}, nil), in(initializing, []string{"c"}, nil), shrink},
		"initializer duplicated":              {in(initializing, []string{"a", "b"}, nil), in(initializing, []string{"a", "a"}, nil), shrink},
		"initializer added when Ready":        {in(ready, nil, nil), in(ready, []string{"a"}, nil), shrink},
		"Scheduling to Initializing":          {in(scheduling, nil, nil), in(initializing, []string{"a", "b"}, nil), ""},
		"Initializing without initializers":   {in("", nil, nil), in(initializing, nil, nil), "status.initializers must initially equal spec.initializers"},
		"Scheduling to Ready":                 {in(scheduling, nil, nil), in(ready, nil, nil), "to Ready: the next phases are"},
		"Ready to Initializing":               {in(ready, nil, nil), in(initializing, []string{"a", "b"}, nil), "to Initializing: the next phases are"},
		"Ready to Scheduling":                 {in(ready, nil, nil), in(scheduling, nil, nil), "to Scheduling: the next phases are"},
		"Ready to Inactive":                   {in(ready, nil, nil), in(inactive, nil, nil), ""},
		"Inactive to Ready":                   {in(inactive, nil, nil), in(ready, nil, nil), ""},
		"Initializing to Inactive":            {in(initializing, nil, nil), in(inactive, nil, nil), "to Inactive: the next phases are"},
		"Ready to Deleting":                   {in(ready, nil, nil), in(corev1alpha1.LogicalClusterPhaseDeleting, nil, nil), "to Deleting: the next phases are"},
		"terminator removed":                  {in(terminating, nil, []string{"a", "b"}), in(terminating, nil, []string{"a"}), ""},
		"terminator removed when Ready":       {in(ready, nil, []string{"a"}), in(ready, nil, nil), "entries of status.terminators can only be removed, and only while status.phase is Terminating"},
		"Terminating to Ready":                {in(terminating, nil, nil), in(ready, nil, nil), "to Ready: the next phases are"},
		"URL changed":                         {in(ready, nil, nil), moved, "status.URL is set by the system"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, as := range []user.Info{admin, external} {
				verdict(t, NewReserved().Validate(t.Context(), attributes(logicalClusters, "status", test.after, test.before, as), nil), test.denied)
			}
			require.NoError(t, NewReserved().Validate(t.Context(), attributes(logicalClusters, "status", test.after, test.before, machine), nil))
		})
	}
}

// TestFinalizersThroughVirtualWorkspaces checks that a provider can add finalizers to claimed
// LogicalClusters, and can change nothing else.
func TestFinalizersThroughVirtualWorkspaces(t *testing.T) {
	const consumer, provider = logicalcluster.Name("consumer"), logicalcluster.Name("provider")
	bare, held := object(map[string]any{}), object(map[string]any{})
	held.SetFinalizers([]string{"example.com/mine"})
	system := object(map[string]any{})
	system.SetFinalizers([]string{"core.kcp.io/logicalcluster"})
	respecified := object(map[string]any{"spec": map[string]any{"directlyDeletable": true}})
	respecified.SetFinalizers([]string{"example.com/mine"})
	all, some := metav1.LabelSelector{}, metav1.LabelSelector{MatchLabels: map[string]string{"for": "a"}}
	for name, test := range map[string]struct {
		claimed  schema.GroupResource
		selector metav1.LabelSelector
		in       logicalcluster.Name
		through  request.Through
		after    *unstructured.Unstructured
		denied   string
	}{
		"accepted claim":                     {logicalClusters, all, consumer, request.Through{Mount: request.APIExports, Provider: provider}, held, ""},
		"finalizer of the system":            {logicalClusters, all, consumer, request.Through{Mount: request.APIExports, Provider: provider}, system, "core.kcp.io/logicalcluster"},
		"changed spec":                       {logicalClusters, all, consumer, request.Through{Mount: request.APIExports, Provider: provider}, respecified, "spec is set by the system"},
		"claim that selects other objects":   {logicalClusters, some, consumer, request.Through{Mount: request.APIExports, Provider: provider}, held, "accepted permission claim"},
		"claim in another logical cluster":   {logicalClusters, all, "another", request.Through{Mount: request.APIExports, Provider: provider}, held, "accepted permission claim"},
		"claim on another resource":          {shards, all, consumer, request.Through{Mount: request.APIExports, Provider: provider}, held, "accepted permission claim"},
		"export of the same logical cluster": {logicalClusters, all, consumer, request.Through{Mount: request.APIExports, Provider: consumer}, held, "accepted permission claim"},
		"virtual workspace of another kind":  {logicalClusters, all, consumer, request.Through{Mount: request.InitializingWorkspaces, Provider: provider}, held, "accepted permission claim"},
		"no virtual workspace":               {logicalClusters, all, consumer, request.Through{}, held, "accepted permission claim"},
	} {
		t.Run(name, func(t *testing.T) {
			selector, err := metav1.LabelSelectorAsSelector(&test.selector)
			require.NoError(t, err)
			set := claims.NewSet(nil, test.claimed, "", 1)
			set.Allow(consumer, selector, 1)
			ctx := claims.WithSet(request.WithThrough(request.WithClusterName(t.Context(), test.in), test.through), set)
			verdict(t, NewReserved().Validate(ctx, attributes(logicalClusters, "", test.after, bare, tenant), nil), test.denied)
		})
	}
}
