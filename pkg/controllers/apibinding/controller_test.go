package apibinding

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/test/crash"
)

const (
	provider = logicalcluster.Name("provider")
	consumer = logicalcluster.Name("consumer")
	locks    = "internal.apis.kcp.io/resource-bindings"
)

var (
	errNone       = apierrors.NewNotFound(schema.GroupResource{}, "x")
	errIncomplete = fmt.Errorf("%w: the cache server is unreachable", client.ErrIncomplete)
)

// world simulates a shard: stored objects, served resources, and faults.
type world struct {
	crash.Process

	r        *bindingReconciler
	version  int
	bindings map[string]*apisv1alpha2.APIBinding
	exports  map[string]*apisv1alpha2.APIExport
	schemas  map[string]types.UID // by name
	lc       *corev1alpha1.LogicalCluster
	pinned   map[types.UID]bool
	taken    map[string]string // resource of definitions, by owner
	objects  map[string]int    // by resource and schema
	waits    map[string]int    // how many of them wait for a finalizer

	reads, yielded int // of bindings
}

func newWorld() *world {
	w := &world{
		bindings: map[string]*apisv1alpha2.APIBinding{}, exports: map[string]*apisv1alpha2.APIExport{}, schemas: map[string]types.UID{},
		pinned: map[types.UID]bool{}, taken: map[string]string{}, objects: map[string]int{}, waits: map[string]int{},
		lc: &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster", UID: "lc", ResourceVersion: "1", Annotations: map[string]string{"kcp.io/cluster": consumer.String()}}},
	}
	w.r = w.bindingReconciler()
	return w
}

// offering returns a world in which the export has widgetsOne, and bindings exist.
func offering(bindings ...string) *world {
	w := newWorld()
	w.offer(widgetsOne)
	w.exports["e"].Status.IdentityHash, w.schemas[widgetsOne] = "h", widgetsOne
	for _, name := range bindings {
		w.bind(name)
	}
	return w
}

func (w *world) bindingReconciler() *bindingReconciler {
	return &bindingReconciler{
		apis: w,
		resolve: func(path logicalcluster.Path, _ string) (logicalcluster.Name, error) {
			if path.String() != "root:provider" {
				return "", nil
			}
			return provider, nil
		},
		known: func(key client.Key) (*apisv1alpha2.APIBinding, error) {
			b := w.bindings[key.Name].DeepCopy()
			if b == nil {
				return nil, errNone
			}
			b.Finalizers = nil
			for i := range b.Status.Conditions {
				b.Status.Conditions[i].LastTransitionTime = metav1.Time{}
			}
			return b, nil
		},
		binding: func(_ context.Context, key client.Key) (*apisv1alpha2.APIBinding, error) {
			w.reads++
			if b := w.bindings[key.Name]; b != nil {
				return b.DeepCopy(), nil
			}
			return nil, errNone
		},
		siblings: func(logicalcluster.Name) (all []*apisv1alpha2.APIBinding) {
			for _, b := range w.bindings {
				all = append(all, b)
			}
			return all
		},
		export: func(key client.Key) (*apisv1alpha2.APIExport, error) {
			if e := w.exports[key.Name]; e != nil && key.Cluster == provider {
				return e, nil
			}
			return nil, errNone
		},
		schema: func(key client.Key) (*metav1.PartialObjectMetadata, error) {
			if uid := w.schemas[key.Name]; uid != "" {
				return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: key.Name, UID: uid}}, nil
			}
			return nil, errNone
		},
		readSchema: func(_ context.Context, key client.Key) (*apis.APIResourceSchema, error) {
			return &apis.APIResourceSchema{ObjectMeta: metav1.ObjectMeta{Name: key.Name, UID: w.schemas[key.Name]}}, nil
		},
		logicalCluster: func(logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
			if w.lc == nil {
				return nil, errNone
			}
			return w.lc, nil
		},
		commitCluster: func(_ context.Context, _, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
			return updated, w.Write(func() {
				updated.ResourceVersion = w.next()
				w.lc = updated
			})
		},
		commit: func(_ context.Context, old, updated *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
			if equality.Semantic.DeepEqual(old, updated) {
				return updated, nil
			}
			return updated, w.Write(func() {
				if updated.DeletionTimestamp != nil && len(updated.Finalizers) == 0 {
					delete(w.bindings, old.Name)
					w.next()
					return
				}
				updated.ResourceVersion = w.next()
				w.bindings[old.Name] = updated
			})
		},
		now: time.Now, recording: keymutex.NewHashed(recordingLocks),
	}
}

func (w *world) next() string {
	w.version++
	return strconv.Itoa(w.version)
}

func (w *world) Pin(ctx context.Context, uid types.UID, read func(context.Context) (*apis.APIResourceSchema, error)) (string, error) {
	original, err := read(ctx)
	if err != nil {
		return "", err
	}
	if original.UID != uid {
		return "", fmt.Errorf("read %s", original.UID)
	}
	switch uid {
	case "bad":
		return "", fmt.Errorf("%w: unknown type", apis.ErrInvalidSchema)
	case "large":
		return "", fmt.Errorf("%w: quota exceeded", apis.ErrLimitReached)
	}
	return "v1", w.Write(func() { w.pinned[uid] = true })
}

// CheckReplacement rejects schemas by name.
func (w *world) CheckReplacement(_ context.Context, bound, next *apisv1alpha2.BoundAPIResource) error {
	switch uid := next.Schema.UID; {
	case strings.HasPrefix(uid, "unlike.") && bound != nil:
		return fmt.Errorf("%w: cannot replace %s", apis.ErrInvalidSchema, bound.Schema.Name)
	case strings.HasPrefix(uid, "unlike."):
		return fmt.Errorf("%w: cannot replace the schemas of other bindings", apis.ErrInUse)
	}
	return nil
}

// Reserve derives resources from schema names such as v1.widgets.example.org-1.
func (w *world) Reserve(_ context.Context, _ logicalcluster.Name, binding string, schemas []types.UID) (func(), string, error) {
	for _, uid := range schemas {
		name, err := apis.ParseSchemaName(string(uid))
		if err != nil {
			return nil, "", err
		}
		if by := w.taken[name.Resource.Resource]; by != "" {
			return nil, by + " uses it", nil
		}
		for _, other := range w.bindings {
			if other.Name != binding && slices.ContainsFunc(other.Status.BoundResources, func(b apisv1alpha2.BoundAPIResource) bool { return b.Resource == name.Resource.Resource }) {
				return nil, other.Name + " uses it", nil
			}
		}
	}
	return func() {}, "", w.Write(func() {})
}

// Rewrite rejects changes of anything but the status.
func (w *world) Rewrite(_ context.Context, key client.Key, change func(*apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	stored := w.bindings[key.Name]
	if stored == nil {
		return nil, errNone
	}
	written := change(stored.DeepCopy())
	if written == nil || !equality.Semantic.DeepEqual(stored.ObjectMeta, written.ObjectMeta) ||
		!equality.Semantic.DeepEqual(stored.Status.ExportPermissionClaims, written.Status.ExportPermissionClaims) ||
		!equality.Semantic.DeepEqual(stored.Status.AppliedPermissionClaims, written.Status.AppliedPermissionClaims) {
		return nil, nil
	}
	return written, w.Write(func() {
		written.ResourceVersion = w.next()
		w.bindings[key.Name] = written
	})
}

func (w *world) WaitFor(context.Context, *apisv1alpha2.APIBinding) error { return w.Write(func() {}) }

func (w *world) Yield(context.Context, client.Key) error { return w.Write(func() { w.yielded++ }) }

func (w *world) Empty(_ context.Context, _ logicalcluster.Name, bound *apisv1alpha2.BoundAPIResource) (int, map[string]int, error) {
	key := bound.Resource + "/" + bound.Schema.UID
	err := w.Write(func() { w.objects[key] = min(w.objects[key], w.waits[key]) })
	if w.objects[key] == 0 {
		return 0, nil, err
	}
	return w.objects[key], map[string]int{"example.org/wait": w.waits[key]}, err
}

func (*world) NotifyFreed(func()) func() { return func() {} }

func (*world) FollowNames(func(logicalcluster.Name, string)) func() { return func() {} }

// reconcile restarts the controller after a crash.
func (w *world) reconcile(t *testing.T, name string) error {
	t.Helper()
	_, err := w.r.reconcile(t.Context(), client.Key{Cluster: consumer, Name: name})
	if errors.Is(err, crash.Err) {
		w.Restart()
		w.r = w.bindingReconciler()
	}
	return err
}

// mustReconcile reconciles a binding without an error.
func (w *world) mustReconcile(t *testing.T, name string) reconcile.Result {
	t.Helper()
	result, err := w.r.reconcile(t.Context(), client.Key{Cluster: consumer, Name: name})
	require.NoError(t, err)
	return result
}

// converge reconciles all bindings in random order until nothing changes.
func (w *world) converge(t *testing.T) {
	t.Helper()
	for range 100 {
		before, failed := w.version, false
		names := []string{"a", "b", "c"}
		rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			failed = w.reconcile(t, name) != nil || failed
		}
		if !failed && w.version == before {
			return
		}
	}
	require.Fail(t, "the state does not converge")
}

// bindingTo returns a new binding to an export.
func bindingTo(path, export, name string) *apisv1alpha2.APIBinding {
	b := &apisv1alpha2.APIBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	b.Spec.Reference.Export = &apisv1alpha2.ExportBindingReference{Path: path, Name: export}
	return b
}

func (w *world) bind(name string) {
	b := bindingTo("root:provider", "e", name)
	b.UID, b.Finalizers = types.UID(name), []string{apis.BindingFinalizer}
	b.Labels = map[string]string{apis.ExportLabel: apis.ExportLabelValue(provider, "e")}
	w.bindings[name] = b
}

func (w *world) offer(schemas ...string) {
	e := w.exports["e"]
	if e == nil {
		e = &apisv1alpha2.APIExport{ObjectMeta: metav1.ObjectMeta{Name: "e"}}
		w.exports["e"] = e
	}
	e.Spec.Resources = nil
	for _, name := range schemas {
		parsed, _ := apis.ParseSchemaName(name)
		e.Spec.Resources = append(e.Spec.Resources, apisv1alpha2.ResourceSchema{Group: parsed.Resource.Group, Name: parsed.Resource.Resource, Schema: name})
	}
}

// picture is the part of the state that must not depend on the order of events.
func (w *world) picture() map[string]any {
	p := map[string]any{"locks": w.lc.Annotations[locks], "objects": fmt.Sprint(w.objects)}
	for name, b := range w.bindings {
		status := b.Status.DeepCopy()
		states := map[string]string{}
		for _, c := range status.Conditions {
			states[string(c.Type)] = fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message)
		}
		status.Conditions = nil
		p[name] = fmt.Sprintf("%+v %v %v", *status, states, b.Annotations)
	}
	return p
}

const (
	widgetsOne, widgetsTwo = "v1.widgets.example.org", "v2.widgets.example.org"
	gadgets                = "v1.gadgets.example.org"
)

// play runs the events in random order, with reconciles in between.
func (w *world) play(t *testing.T, random *rand.Rand, lines [][]func(*world)) {
	t.Helper()
	for len(lines) > 0 {
		i := random.IntN(len(lines))
		lines[i][0](w)
		if lines[i] = lines[i][1:]; len(lines[i]) == 0 {
			lines = slices.Delete(lines, i, i+1)
		}
		for range random.IntN(3) {
			_ = w.reconcile(t, []string{"a", "b", "c"}[random.IntN(3)])
		}
	}
	w.converge(t)
}

// TestAnyOrder: the final state of a binding depends neither on the order of events nor on crashes.
func TestAnyOrder(t *testing.T) {
	var bound, orphaned map[string]any
	var last int
	const crashes = 160
	for seed := range uint64(2000) {
		w := newWorld()
		random := rand.New(rand.NewPCG(seed, 1))
		if seed%2 == 1 {
			w.Process = crash.Point(2 + int(seed/2)%crashes)
		}
		w.play(t, random, whole())
		if bound == nil {
			bound = w.picture()
			b := w.bindings["b"]
			require.Equal(t, apisv1alpha2.APIBindingPhaseBound, b.Status.Phase)
			require.Len(t, b.Status.BoundResources, 2)
			require.True(t, conditions.IsTrue(b, "Ready"))
			require.Len(t, b.Status.ExportPermissionClaims, 2)
			require.Len(t, b.Status.AppliedPermissionClaims, 1)
			require.JSONEq(t, `{"widgets.example.org":{"n":"b"},"gadgets.example.org":{"n":"b"}}`, w.lc.Annotations[locks])
		}
		require.Equal(t, bound, w.picture(), "seed %d", seed)
		for _, resource := range w.bindings["b"].Status.BoundResources {
			require.True(t, w.pinned[types.UID(resource.Schema.UID)], "bound schemas must be pinned")
		}
		w.play(t, random, ends())
		if orphaned == nil {
			orphaned = w.picture()
			require.Equal(t, "APIExportNotFound", conditions.Get(w.bindings["b"], apisv1alpha2.APIExportValid).Reason)
			require.True(t, conditions.IsTrue(w.bindings["b"], "Ready"), "bound resources must stay available")
			require.Empty(t, w.bindings["b"].Status.ExportPermissionClaims)
			require.Empty(t, w.bindings["b"].Status.AppliedPermissionClaims)
		}
		require.Equal(t, orphaned, w.picture(), "seed %d", seed)
		last = max(last, w.Calls)
	}
	require.Less(t, last, crashes/2, "the crash points do not cover all side effects")
}

// TestDeletion: a binding waits for the deletion of its objects, even after crashes, and another binding takes over the
// same resources.
func TestDeletion(t *testing.T) {
	for crashAt := range 40 {
		w := offering("a")
		w.offer(widgetsOne, gadgets)
		w.schemas[gadgets] = gadgets
		w.converge(t)
		w.objects["widgets/"+widgetsOne], w.objects["gadgets/"+gadgets] = 3, 2
		w.waits["widgets/"+widgetsOne] = 1
		w.remove("a")
		w.Process = crash.Point(2 + crashAt)
		w.converge(t)
		condition := conditions.Get(w.bindings["a"], apisv1alpha2.BindingResourceDeleteSuccess)
		require.Equal(t, "SomeFinalizersRemain", condition.Reason)
		require.Equal(t, "Objects remain: 1 of widgets.example.org. They wait for finalizers, which their owners must remove: example.org/wait has 1 of widgets.example.org", condition.Message)
		require.Zero(t, w.objects["gadgets/"+gadgets])

		// Another binding of the export takes over the remaining objects.
		w.bind("b")
		w.converge(t)
		require.NotContains(t, w.bindings, "a")
		require.Equal(t, 1, w.objects["widgets/"+widgetsOne])
		require.True(t, conditions.IsTrue(w.bindings["b"], "Ready"))
		require.JSONEq(t, `{"widgets.example.org":{"n":"b"},"gadgets.example.org":{"n":"b"}}`, w.lc.Annotations[locks])

		w.remove("b")
		w.waits = map[string]int{}
		w.converge(t)
		require.Empty(t, w.bindings)
		require.NotContains(t, w.lc.Annotations, locks)
	}
}

// TestConflicts: the first binding gets the names, and an export is not bound while one of its names is in use.
func TestConflicts(t *testing.T) {
	w := offering("b")
	w.offer(widgetsOne, gadgets)
	w.schemas[gadgets] = gadgets
	w.taken["gadgets"] = "crd"
	w.converge(t)
	require.Empty(t, w.bindings["b"].Status.BoundResources)
	require.Equal(t, []client.Key{{Cluster: consumer, Name: "b"}}, w.r.waiting.Of(consumer.String()))
	delete(w.taken, "gadgets")
	w.converge(t)
	require.Len(t, w.bindings["b"].Status.BoundResources, 2)
	require.Empty(t, w.r.waiting.Of(consumer.String()))

	// Another identity never takes over the objects of the first one.
	w.exports["e"].Status.IdentityHash = "other"
	w.converge(t)
	require.Equal(t, "h", w.bindings["b"].Status.BoundResources[0].Schema.IdentityHash)
	require.True(t, conditions.IsTrue(w.bindings["b"], "Ready"))

	// An invalid schema changes nothing either.
	w.exports["e"].Status.IdentityHash = "h"
	w.schemas[widgetsTwo] = "bad"
	w.offer(widgetsTwo, gadgets)
	w.converge(t)
	require.Equal(t, "APIResourceSchemaInvalid", conditions.Get(w.bindings["b"], apisv1alpha2.BindingUpToDate).Reason)
	require.Equal(t, widgetsOne, w.bindings["b"].Status.BoundResources[0].Schema.Name)
}

// TestBindingIsReadOnlyBeforeRequests: a binding is read only before a write that needs a request.
func TestBindingIsReadOnlyBeforeRequests(t *testing.T) {
	w := offering("b")
	w.schemas[widgetsTwo] = widgetsTwo
	expectReads := func(want int, action string) {
		t.Helper()
		w.reads = 0
		for range 3 {
			w.mustReconcile(t, "b")
		}
		require.Equal(t, want, w.reads, action)
	}
	expectReads(1, "new binding")
	require.True(t, conditions.IsTrue(w.bindings["b"], "Ready"))
	w.yielded = 0
	expectReads(0, "complete status")
	require.Equal(t, 3, w.yielded, "definitions may use its names meanwhile")
	w.exports["e"].ResourceVersion = "2"
	expectReads(0, "unrelated change of the export")
	w.offer(widgetsTwo)
	expectReads(0, "new schema: the status is written without reading it")
	require.Equal(t, widgetsTwo, w.bindings["b"].Status.BoundResources[0].Schema.Name)
	w.exports["e"].Annotations = map[string]string{apis.MirroredPrefix + "note": "hello", "other": "x"}
	expectReads(1, "annotation for consumers")
	require.Equal(t, "hello", w.bindings["b"].Annotations[apis.MirroredPrefix+"note"])
	w.exports["e"].Spec.PermissionClaims = []apisv1alpha2.PermissionClaim{{GroupResource: apisv1alpha2.GroupResource{Resource: "secrets"}, Verbs: []string{"get"}}}
	expectReads(1, "new claim")
	w.bindings["b"].Spec.PermissionClaims = []apisv1alpha2.AcceptablePermissionClaim{{
		ScopedPermissionClaim: apisv1alpha2.ScopedPermissionClaim{PermissionClaim: w.exports["e"].Spec.PermissionClaims[0]}, State: apisv1alpha2.ClaimAccepted,
	}}
	expectReads(1, "accepted claim")
	delete(w.lc.Annotations, locks)
	expectReads(0, "lost annotation of the LogicalCluster")
	require.Contains(t, w.lc.Annotations, locks)
	delete(w.exports, "e")
	expectReads(1, "deleted export")
}
