package defaults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/crash"
	"github.com/shardplane/shardplane/test/documented"
)

const (
	cluster              = logicalcluster.Name("consumer")
	conditionInitialized = tenancyv1alpha1.WorkspaceAPIBindingsInitialized
	conditionReconciled  = tenancyv1alpha1.WorkspaceAPIBindingsReconciled
)

var errNone = apierrors.NewNotFound(schema.GroupResource{}, "x")

// world is a shard with a logical cluster of type root:special, which extends root:base.
type world struct {
	crash.Process

	b          *Bindings
	lc         *corev1alpha1.LogicalCluster
	version    int
	types      map[string]*tenancyv1alpha1.WorkspaceType
	incomplete error
	exports    map[string]*apisv1alpha2.APIExport // of root:provider, i.e. the logical cluster provider
	resolves   bool
	// incompleteExports is set while exports of other shards are unknown.
	incompleteExports error
	bindings          map[string]*apisv1alpha2.APIBinding
	elsewhere         map[string]bool // exports that are bound on the shard
}

func newWorld() *world {
	w := &world{
		types: map[string]*tenancyv1alpha1.WorkspaceType{}, exports: map[string]*apisv1alpha2.APIExport{}, resolves: true,
		bindings: map[string]*apisv1alpha2.APIBinding{},
		lc: &corev1alpha1.LogicalCluster{
			ObjectMeta: metav1.ObjectMeta{Name: "cluster", Annotations: map[string]string{"kcp.io/cluster": cluster.String(), tenancyv1alpha1.LogicalClusterTypeAnnotationKey: "root:special"}},
			Status: corev1alpha1.LogicalClusterStatus{
				Phase: corev1alpha1.LogicalClusterPhaseInitializing, Initializers: []corev1alpha1.LogicalClusterInitializer{"root:other", tenancyv1alpha1.WorkspaceAPIBindingsInitializer},
			},
		},
	}
	w.restart()
	return w
}

func (w *world) restart() {
	w.Restart()
	w.b = &Bindings{
		config: Config{
			Types: func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
				wt := w.types[path.Join(tenancyv1alpha1.ObjectName(name)).String()]
				return wt, wt != nil
			},
			TypesComplete: func() error { return w.incomplete },
			Resolve: func(path logicalcluster.Path, _ string) (logicalcluster.Name, error) {
				if w.resolves && (path.String() == "root:provider" || path.String() == "provider") {
					return "provider", nil
				}
				return "", w.incompleteExports
			},
			Binder: w,
		},
		export: func(key client.Key) (*apisv1alpha2.APIExport, error) {
			if e := w.exports[key.Name]; e != nil && key.Cluster == "provider" {
				return e, nil
			}
			return nil, errNone
		},
		known: func(key client.Key) (*apisv1alpha2.APIBinding, error) {
			if b := w.bindings[key.Name]; b != nil {
				return b, nil
			}
			return nil, errNone
		},
		create: func(_ context.Context, in logicalcluster.Name, binding *apisv1alpha2.APIBinding) error {
			if w.bindings[binding.Name] != nil || in != cluster {
				return apierrors.NewAlreadyExists(schema.GroupResource{}, binding.Name)
			}
			return w.write(binding)
		},
		commit: func(_ context.Context, _, updated *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
			return updated, w.write(updated)
		},
		made: map[logicalcluster.Name][]*apisv1alpha2.APIBinding{},
	}
}

// Bind implements Binder for exports that are bound elsewhere.
func (w *world) Bind(_ context.Context, _ *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) (*apisv1alpha2.APIBinding, error) {
	if !w.elsewhere[export.Name] {
		return nil, nil
	}
	if w.bindings[binding.Name] != nil {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{}, binding.Name)
	}
	conditions.MarkTrue(binding, apisv1alpha2.InitialBindingCompleted)
	return binding, w.write(binding)
}

func (*world) Note(lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	lc.Annotations["recorded "+binding.Name] = "true"
	return lc
}

// TestBoundWithOneWrite: exports that are bound elsewhere are bound and recorded with one write, unless the logical cluster is Ready.
func TestBoundWithOneWrite(t *testing.T) {
	w := newWorld()
	w.offer("one")
	w.elsewhere = map[string]bool{"one": true, "two": true}
	w.typed("special", true, "", ref("root:provider", "one"))
	w.step(t)
	require.Equal(t, 1, w.version)
	require.NotContains(t, w.lc.Status.Initializers, tenancyv1alpha1.WorkspaceAPIBindingsInitializer)
	require.Equal(t, "True  ", w.conditionOf(conditionInitialized))
	recorded := "recorded " + apis.DefaultBindingName(cluster, "root:provider", "one")
	require.Contains(t, w.b.Note(w.lc).Annotations, recorded)
	require.NotContains(t, w.b.Note(w.lc).Annotations, recorded, "bindings must be recorded once")
	w.step(t)
	require.Equal(t, 1, w.version)

	w.offer("two")
	w.typed("special", true, "", ref("root:provider", "one"), ref("root:provider", "two"))
	w.step(t)
	require.False(t, conditions.IsTrue(w.bindings[apis.DefaultBindingName(cluster, "root:provider", "two")], apisv1alpha2.InitialBindingCompleted),
		"a Ready logical cluster must not be bound immediately")
}

// write is a side effect, before or after which the controller may crash.
func (w *world) write(binding *apisv1alpha2.APIBinding) error {
	err := w.Write(func() {
		w.version++
		binding = binding.DeepCopy()
		binding.ResourceVersion = strconv.Itoa(w.version)
		w.bindings[binding.Name] = binding
	})
	if err != nil {
		w.restart()
	}
	return err
}

func (w *world) step(t *testing.T) (again bool) {
	t.Helper()
	updated, _, err := w.b.Make(t.Context(), w.lc.DeepCopy())
	if errors.Is(err, crash.Err) {
		return true
	}
	require.NoError(t, err)
	w.lc = updated
	return false
}

// bound simulates the controller of bindings.
func (w *world) bound() {
	for name, b := range w.bindings {
		if b.DeletionTimestamp == nil {
			b = b.DeepCopy()
			conditions.MarkTrue(b, apisv1alpha2.InitialBindingCompleted)
			w.bindings[name] = b
		}
	}
}

func (w *world) typed(name string, maintain bool, extends string, refs ...tenancyv1alpha1.APIExportReference) {
	wt := &tenancyv1alpha1.WorkspaceType{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"kcp.io/cluster": "provider"}},
		Spec:       tenancyv1alpha1.WorkspaceTypeSpec{DefaultAPIBindings: refs},
	}
	if maintain {
		wt.Spec.DefaultAPIBindingLifecycle = new(tenancyv1alpha1.APIBindingLifecycleModeMaintain)
	}
	if extends != "" {
		wt.Spec.Extend.With = []tenancyv1alpha1.WorkspaceTypeReference{{Path: "root", Name: tenancyv1alpha1.WorkspaceTypeName(extends)}}
	}
	w.types["root:"+name] = wt
}

func ref(path, export string) tenancyv1alpha1.APIExportReference {
	return tenancyv1alpha1.APIExportReference{Path: path, Export: export}
}

func (w *world) offer(name string, claims ...apisv1alpha2.PermissionClaim) {
	w.exports[name] = &apisv1alpha2.APIExport{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: apisv1alpha2.APIExportSpec{PermissionClaims: claims}}
}

func claim(resource string, selector *apisv1alpha2.PermissionClaimSelector) apisv1alpha2.PermissionClaim {
	return apisv1alpha2.PermissionClaim{GroupResource: apisv1alpha2.GroupResource{Resource: resource}, Verbs: []string{"get"}, DefaultSelector: selector}
}

func (w *world) conditionOf(kind conditionsv1alpha1.ConditionType) string {
	c := conditions.Get(w.lc, kind)
	if c == nil {
		return ""
	}
	return fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message)
}

// picture is the part of the state that must not depend on the order of events.
func (w *world) picture() map[string]string {
	p := map[string]string{"lc": fmt.Sprint(w.lc.Status.Initializers, w.conditionOf(conditionInitialized), w.conditionOf(conditionReconciled))}
	for name, b := range w.bindings {
		p[name] = fmt.Sprintf("%+v %+v %v", *b.Spec.Reference.Export, b.Spec.PermissionClaims, conditions.IsTrue(b, apisv1alpha2.InitialBindingCompleted))
	}
	return p
}

// TestAnyOrder: the final state depends neither on the order in which types, exports and bindings are observed, nor on crashes.
func TestAnyOrder(t *testing.T) {
	labelled := &apisv1alpha2.PermissionClaimSelector{LabelSelector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}
	var first map[string]string
	for seed := range uint64(2000) {
		w, random := newWorld(), rand.New(rand.NewPCG(seed, 1))
		if seed%2 == 1 {
			w.Process = crash.Point(2 + random.IntN(12))
		}
		events := []func(){
			func() { w.typed("special", false, "base", ref("root:provider", "one")) },
			func() { w.typed("base", true, "", ref("", "two"), ref("provider", "one")) },
			func() { w.offer("one", claim("secrets", nil), claim("configmaps", labelled)) },
			func() { w.offer("two") },
			func() { w.resolves = true },
			w.bound,
		}
		w.resolves = false
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		for _, event := range events {
			event()
			for range random.IntN(3) {
				w.step(t)
			}
		}
		for range 3 {
			for w.step(t) {
			}
			w.bound()
		}
		if first == nil {
			first = w.picture()
			require.Len(t, w.bindings, 2, "an export must be bound once, even if several paths refer to it")
			require.Equal(t, []corev1alpha1.LogicalClusterInitializer{"root:other"}, w.lc.Status.Initializers)
			require.Equal(t, "True  ", w.conditionOf(conditionInitialized))
			require.Equal(t, "True  ", w.conditionOf(conditionReconciled))
			one := w.bindings[apis.DefaultBindingName(cluster, "root:provider", "one")]
			require.Equal(t, "root:provider", one.Spec.Reference.Export.Path)
			require.Equal(t, apisv1alpha2.PermissionClaimSelector{MatchAll: true}, one.Spec.PermissionClaims[0].Selector)
			require.Equal(t, *labelled, one.Spec.PermissionClaims[1].Selector)
			require.Equal(t, apisv1alpha2.ClaimAccepted, one.Spec.PermissionClaims[1].State)
			require.NotNil(t, w.bindings[apis.DefaultBindingName(cluster, "provider", "two")], "an empty path must refer to the logical cluster of the type")
		}
		require.Equal(t, first, w.picture(), "seed %d", seed)
	}
}

// TestConditions: conditions report why a logical cluster waits, and a solution.
func TestConditions(t *testing.T) {
	w := newWorld()
	w.incomplete = client.ErrIncomplete
	early, _, err := w.b.Make(t.Context(), w.lc)
	require.ErrorIs(t, err, client.ErrIncomplete, "the type may exist on another shard")
	require.Equal(t, "Waiting for the state of other shards: not all objects are loaded yet", conditions.GetMessage(early, conditionInitialized))
	w.incomplete = nil
	w.step(t)
	require.Equal(t, "False WorkspaceTypesInvalid workspace type root:special does not exist: create it, or fix the type that references it", w.conditionOf(conditionInitialized))
	require.Equal(t, []string{"root:special"}, w.b.ofTypes.Of("root:special"), "the creation of the type must requeue the logical cluster")

	w.typed("special", false, "", ref("root:provider", "one"))
	w.resolves = false
	_, again, err := w.b.Make(t.Context(), w.lc)
	require.NoError(t, err)
	require.True(t, again, "no event reports that the path can be resolved")
	w.incompleteExports = client.ErrIncomplete
	early, _, err = w.b.Make(t.Context(), w.lc)
	require.ErrorIs(t, err, client.ErrIncomplete, "the export may exist on another shard")
	require.Equal(t, "WaitingOnAPIBindings", conditions.GetReason(early, conditionInitialized))
	w.incompleteExports = nil
	w.resolves = true
	updated, again, err := w.b.Make(t.Context(), w.lc)
	require.NoError(t, err)
	require.False(t, again)
	w.lc = updated
	require.Equal(t, "False APIBindingErrors APIExport root:provider:one does not exist: create it, or remove it from spec.defaultAPIBindings of the workspace type", w.conditionOf(conditionInitialized))
	require.Equal(t, []logicalcluster.Name{cluster}, w.b.ofExports.Of("root:provider:one"))

	w.offer("one")
	name := apis.DefaultBindingName(cluster, "root:provider", "one")
	w.step(t)
	require.Equal(t, "False WaitingOnAPIBindings Not bound yet: APIBinding "+name+". See their conditions", w.conditionOf(conditionInitialized))
	require.NotEmpty(t, w.b.watching(cluster))
	require.Empty(t, w.b.ofExports.Of("root:provider:one"), "changes of a bound export must not requeue the logical cluster")

	w.bindings[name].Spec.Reference.Export.Name = "another"
	w.step(t)
	require.Contains(t, w.conditionOf(conditionInitialized), "False APIBindingErrors APIBinding "+name+" references another APIExport than root:provider:one")
	delete(w.bindings, name)
	w.step(t)
	w.bound()
	w.step(t)
	require.Equal(t, "True  ", w.conditionOf(conditionInitialized))
	w.step(t)
	require.Empty(t, w.b.watching(cluster), "bindings must not be watched after the initialization")

	// Now all bindings belong to the user.
	delete(w.bindings, name)
	w.step(t)
	require.Empty(t, w.bindings)
	delete(w.types, "root:special")
	w.step(t)
	require.Equal(t, "True  ", w.conditionOf(conditionInitialized))
}

// TestFailedWrites: failed writes are reported and retried.
func TestFailedWrites(t *testing.T) {
	w := newWorld()
	w.typed("special", false, "", ref("root:provider", "one"))
	w.offer("one")
	w.b.create = func(context.Context, logicalcluster.Name, *apisv1alpha2.APIBinding) error {
		return apierrors.NewForbidden(schema.GroupResource{}, "x", errors.New("exceeded quota"))
	}
	updated, _, err := w.b.Make(t.Context(), w.lc)
	require.ErrorContains(t, err, "exceeded quota")
	w.lc = updated
	require.Contains(t, w.conditionOf(conditionInitialized), "False APIBindingErrors APIBinding one-")
	require.Contains(t, w.conditionOf(conditionInitialized), "exceeded quota")
	require.Contains(t, w.lc.Status.Initializers, tenancyv1alpha1.WorkspaceAPIBindingsInitializer)
}

// TestMaintain: existing logical clusters follow changes of types, exports and bindings.
func TestMaintain(t *testing.T) {
	w := newWorld()
	w.lc.Status.Initializers = nil
	w.lc.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	w.offer("one")
	w.typed("special", false, "base")
	w.typed("base", false, "", ref("root:provider", "one"))
	w.step(t)
	require.Empty(t, w.bindings, "a Ready logical cluster must only get bindings with Maintain")
	require.Equal(t, []string{"root:special"}, w.b.ofTypes.Of("root:base"), "changes of the type must requeue the logical cluster")

	w.typed("base", true, "", ref("root:provider", "one"), ref("root:provider", "two"))
	w.step(t)
	require.Len(t, w.bindings, 1)
	require.Contains(t, w.conditionOf(conditionReconciled), "False APIBindingErrors APIExport root:provider:two does not exist")
	require.Empty(t, w.conditionOf(conditionInitialized))
	w.offer("two")
	w.step(t)
	w.bound()
	w.step(t)
	require.Equal(t, "True  ", w.conditionOf(conditionReconciled))

	// Claims are updated, and deleted bindings are recreated.
	name := apis.DefaultBindingName(cluster, "root:provider", "one")
	w.bindings[name].UID = "first"
	w.offer("one", claim("secrets", nil))
	w.step(t)
	require.Len(t, w.bindings[name].Spec.PermissionClaims, 1)
	require.Equal(t, types.UID("first"), w.bindings[name].UID)
	version := w.version
	w.step(t)
	require.Equal(t, version, w.version, "unchanged bindings must not be written")
	w.bindings[name].DeletionTimestamp = new(metav1.Now())
	w.step(t)
	require.Contains(t, w.conditionOf(conditionReconciled), "False WaitingOnAPIBindings")
	delete(w.bindings, name)
	w.step(t)
	w.bound()
	w.step(t)
	require.Equal(t, "True  ", w.conditionOf(conditionReconciled))

	// Bindings are retained when the export or the type is deleted.
	delete(w.exports, "one")
	w.step(t)
	require.Equal(t, "True  ", w.conditionOf(conditionReconciled))
	wt := w.types["root:base"]
	delete(w.types, "root:base")
	w.step(t)
	require.Contains(t, w.conditionOf(conditionReconciled), "False WorkspaceTypesInvalid workspace type root:special extends root:base")
	require.Len(t, w.bindings, 2)
	w.types["root:base"] = wt
	w.step(t)
	w.typed("base", false, "", slices.Clone(wt.Spec.DefaultAPIBindings)...)
	w.step(t)
	require.Empty(t, w.conditionOf(conditionReconciled), "the condition must be removed when bindings are no longer maintained")
	require.Empty(t, w.b.watching(cluster))
	require.Len(t, w.bindings, 2)
}

func TestDocumented(t *testing.T) {
	var reported []string
	for _, s := range []state{{invalid: errNone}, {failed: []string{"it"}}, {waiting: []string{"it"}}} {
		lc := s.withCondition(newWorld().lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized)
		reported = append(reported, documented.Reported(s.withCondition(lc, conditionReconciled))...)
	}
	require.ElementsMatch(t, documented.Conditions(t, "Default bindings of a LogicalCluster"), reported)
}
