// Package defaults binds in a logical cluster what its type says
// (spec.defaultAPIBindings), with the rights of the system: who has written the type
// might bind it.
//
//	type and what it extends ─► exports that are wanted ─► APIBindings, claims accepted
//	                                                         │ all bound
//	                        initializer system:apibindings ◄─┘ goes
//
// That is done once, before a logical cluster is Ready, or, where the type says Maintain,
// from then on as well. Nothing is remembered but who is to look again when something comes
// or changes: a type, an export, a binding.
package defaults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// atOnce is how many logical clusters look at once at a type that has changed.
	atOnce = 50
	// lookInterval is the time between two of the others.
	lookInterval = 2500 * time.Microsecond
)

// Config is what it needs. The informers are those of all logical clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// LogicalClusters have the index tenancy.TypeIndex.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	Bindings        *client.Informer[*apisv1alpha2.APIBinding]
	// Exports are those of other shards, too.
	Exports *replicas.Dual[*apisv1alpha2.APIExport]
	Resolve Resolve
	// Binder makes the bindings of new logical clusters.
	Binder Binder
	// BindsSystem is set if logical clusters bind what root exports of the system. Where
	// the shard does not know what that is, they have it without.
	BindsSystem bool
	// Types finds types, WorkspaceTypes tells of them, and TypesComplete returns why one
	// that is not found may exist all the same.
	Types          tenancy.TypeLookup
	TypesComplete  func() error
	WorkspaceTypes reconcile.Watched[*tenancyv1alpha1.WorkspaceType]
}

// Binder makes bindings that are bound from the start.
type Binder interface {
	// Bind makes a binding in a logical cluster, and returns it as it is stored and
	// served; nil, and it makes none, where that takes more than one write.
	Bind(ctx context.Context, lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) (*apisv1alpha2.APIBinding, error)
	// Note returns a LogicalCluster that says what a binding has bound.
	Note(lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding) *corev1alpha1.LogicalCluster
}

// Resolve returns the logical cluster of an export by its path, or "" if there is none. The
// error is client.ErrIncomplete if there may be one on another shard.
type Resolve func(path logicalcluster.Path, export string) (logicalcluster.Name, error)

// Bindings makes default bindings. Its methods may be called at the same time, but Make
// only once for each logical cluster.
type Bindings struct {
	types         tenancy.TypeLookup
	typesComplete func() error
	resolve       Resolve
	export        func(key client.Key) (*apisv1alpha2.APIExport, error)
	known         func(key client.Key) (*apisv1alpha2.APIBinding, error)
	siblings      func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding
	bindsSystem   bool
	binder        Binder
	create        func(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) error
	commit        func(ctx context.Context, cluster logicalcluster.Name, old, updated *apisv1alpha2.APIBinding) error

	// ofTypes are the types of logical clusters, by what they go by.
	ofTypes tenancy.Waits[string]
	// ofExports are the logical clusters that wait for exports.
	ofExports tenancy.Waits[logicalcluster.Name]

	mu sync.Mutex
	// watched are the logical clusters that go by their bindings.
	watched map[logicalcluster.Name]bool
	// made are bindings whose LogicalClusters are to say what they have bound.
	made map[logicalcluster.Name][]*apisv1alpha2.APIBinding
	// adopted are the logical clusters that are to say that they have the system's bindings.
	adopted map[logicalcluster.Name]bool
}

// New returns what makes default bindings, and what tells that a logical cluster is to be
// looked at again.
func New(cfg Config) (*Bindings, []reconcile.Source[client.Key]) {
	b := &Bindings{
		types: cfg.Types, typesComplete: cfg.TypesComplete, resolve: cfg.Resolve,
		binder: cfg.Binder, bindsSystem: cfg.BindsSystem,
		siblings: func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding {
			return cfg.Bindings.Lister().Cluster(cluster).List(nil)
		},
		known: cfg.Bindings.Lister().Get,
		export: func(key client.Key) (*apisv1alpha2.APIExport, error) {
			return cfg.Exports.Get(key.Cluster, "", key.Name)
		},
		create: func(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) error {
			_, err := kinds.APIBindings.In(cfg.Local.Cluster(cluster.Path())).Create(ctx, binding, metav1.CreateOptions{})
			return err
		},
		commit: func(ctx context.Context, cluster logicalcluster.Name, old, updated *apisv1alpha2.APIBinding) error {
			_, err := reconcile.Commit(ctx, kinds.APIBindings.In(cfg.Local.Cluster(cluster.Path())), old, updated)
			return err
		},
		watched: map[logicalcluster.Name]bool{},
		made:    map[logicalcluster.Name][]*apisv1alpha2.APIBinding{},
		adopted: map[logicalcluster.Name]bool{},
	}
	clusters := cfg.LogicalClusters.Lister()
	return b, []reconcile.Source[client.Key]{
		reconcile.FromInformer(cfg.Bindings, func(binding *apisv1alpha2.APIBinding) []client.Key { return b.watching(logicalcluster.From(binding)) }),
		reconcile.FromInformer(cfg.Exports, func(export *apisv1alpha2.APIExport) []client.Key {
			return keysOf(b.ofExports.Of(apis.IndexByPath(export)...))
		}),
		inTurn(cfg.WorkspaceTypes, func(wt *tenancyv1alpha1.WorkspaceType) []client.Key {
			var keys []client.Key
			for _, id := range b.ofTypes.Of(tenancy.TypeIDs(clusters, wt)...) {
				of := clusters.KeysByIndex(tenancy.TypeIndex, id)
				if len(of) == 0 {
					b.ofTypes.Forget(id)
				}
				keys = append(keys, of...)
			}
			return keys
		}),
	}
}

// inTurn feeds a queue with the logical clusters of types that change: with many of them
// one after the other.
func inTurn(types reconcile.Watched[*tenancyv1alpha1.WorkspaceType], keysOf func(*tenancyv1alpha1.WorkspaceType) []client.Key) reconcile.Source[client.Key] {
	return func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
		enqueue := func(wt *tenancyv1alpha1.WorkspaceType) {
			for i, key := range keysOf(wt) {
				if i < atOnce {
					queue.Add(key)
				} else {
					queue.AddAfter(key, time.Duration(i-atOnce+1)*lookInterval)
				}
			}
		}
		return types.AddEventHandler(client.Handler[*tenancyv1alpha1.WorkspaceType]{
			OnAdd:    func(wt *tenancyv1alpha1.WorkspaceType, _ bool) { enqueue(wt) },
			OnUpdate: func(_, wt *tenancyv1alpha1.WorkspaceType) { enqueue(wt) },
			OnDelete: func(last *tenancyv1alpha1.WorkspaceType, _ bool) { enqueue(last) },
		}).Remove, nil
	}
}

func keysOf(clusters []logicalcluster.Name) []client.Key {
	keys := make([]client.Key, 0, len(clusters))
	for _, cluster := range clusters {
		keys = append(keys, client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	}
	return keys
}

// watching returns the key of a logical cluster that goes by its bindings.
func (b *Bindings) watching(cluster logicalcluster.Name) []client.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.watched[cluster] {
		return nil
	}
	return keysOf([]logicalcluster.Name{cluster})
}

func (b *Bindings) watch(cluster logicalcluster.Name, watched bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if watched {
		b.watched[cluster] = true
	} else {
		delete(b.watched, cluster)
	}
}

// Forget forgets a logical cluster that is being deleted.
func (b *Bindings) Forget(cluster logicalcluster.Name) {
	b.ofExports.Forget(cluster)
	b.watch(cluster, false)
	b.take(cluster)
}

// take returns what was made in a logical cluster since it was called last, and whether it
// has got the system's bindings.
func (b *Bindings) take(cluster logicalcluster.Name) (made []*apisv1alpha2.APIBinding, adopted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	made, adopted = b.made[cluster], b.adopted[cluster]
	delete(b.made, cluster)
	delete(b.adopted, cluster)
	return made, adopted
}

// Note returns a LogicalCluster that says what the bindings have bound that were made since
// it was called last. Should that not be written, whoever leads bindings on writes it.
func (b *Bindings) Note(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	made, adopted := b.take(logicalcluster.From(lc))
	for _, binding := range made {
		lc = b.binder.Note(lc, binding)
	}
	if adopted {
		lc = lc.DeepCopy()
		metav1.SetMetaDataAnnotation(&lc.ObjectMeta, tenancy.SystemBindingsAnnotation, tenancy.SystemBound)
	}
	return lc
}

// makeDefaults is Make for what types say. The logical cluster goes by its bindings if watched
// is set.
func (b *Bindings) makeDefaults(ctx context.Context, lc *corev1alpha1.LogicalCluster, watched bool) (updated *corev1alpha1.LogicalCluster, again reconcile.Result, err error) {
	cluster := logicalcluster.From(lc)
	waiting := waits(lc)
	if waiting {
		// Before they are looked at: whatever changes from then on finds it.
		b.watch(cluster, true)
	}
	all, err := b.wanted(lc)
	if err != nil && !waiting && !conditions.Has(lc, tenancyv1alpha1.WorkspaceAPIBindingsReconciled) {
		return lc, again, nil // it has what it started with
	}
	if errors.Is(err, client.ErrIncomplete) {
		if waiting {
			lc = lc.DeepCopy()
			conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized, tenancyv1alpha1.WorkspaceInitializedWaitingOnAPIBindings, conditionsv1alpha1.ConditionSeverityInfo,
				"It goes on by itself when more of other shards is known: %v", err)
		}
		return lc, again, err
	}
	var initial, maintain state
	initial.invalid, maintain.invalid = err, err
	maintains := err != nil && !waiting
	for i := range all {
		maintains = maintains || all[i].Maintain
	}
	b.watch(cluster, watched || waiting || maintains)
	b.ofExports.Forget(cluster)
	var failures []error
	for i := range all {
		if !waiting && !all[i].Maintain {
			continue
		}
		s := state{}
		failed := b.makeOne(ctx, lc, all[i], &s)
		failures = append(failures, failed)
		again.Backoff = again.Backoff || len(s.failed) > 0 && failed == nil && b.providerOf(all[i]) == ""
		initial.add(s)
		if all[i].Maintain {
			maintain.add(s)
		}
	}
	if len(initial.failed) == 0 {
		b.ofExports.Forget(cluster) // the bindings tell of what there is
	}
	if waiting {
		lc = initial.tell(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized)
		if initial.complete() {
			lc = initialized(lc)
		}
	}
	switch {
	case maintains:
		lc = maintain.tell(lc, tenancyv1alpha1.WorkspaceAPIBindingsReconciled)
	case conditions.Has(lc, tenancyv1alpha1.WorkspaceAPIBindingsReconciled):
		lc = lc.DeepCopy()
		conditions.Delete(lc, tenancyv1alpha1.WorkspaceAPIBindingsReconciled)
	}
	return lc, again, errors.Join(failures...)
}

func (s *state) add(other state) {
	s.failed = append(s.failed, other.failed...)
	s.waiting = append(s.waiting, other.waiting...)
}

// wanted returns the default bindings of a logical cluster: one for each export, whatever
// paths lead to it.
func (b *Bindings) wanted(lc *corev1alpha1.LogicalCluster) ([]tenancy.DefaultBinding, error) {
	id := lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey]
	types, err := b.ofTypes.Types(id, b.types).Of(lc)
	if err != nil {
		if incomplete := b.typesComplete(); incomplete != nil {
			return nil, incomplete // it may exist
		}
		return nil, err
	}
	defaults := types.DefaultBindings()
	all := defaults[:0:0]
	at := map[string]int{}
	for _, want := range defaults {
		if want.IsSystem() && (!want.Maintain || !b.bindsSystem) {
			continue // adopt makes it, or it is there without
		}
		id := want.Path + ":" + want.Export
		if provider := b.providerOf(want); provider != "" {
			id = provider.Path().Join(want.Export).String()
		}
		if i, ok := at[id]; ok {
			all[i].Maintain = all[i].Maintain || want.Maintain
			continue
		}
		at[id] = len(all)
		all = append(all, want)
	}
	return all, nil
}

// providerOf returns the logical cluster of a default binding's export, or "" if none is
// known.
func (b *Bindings) providerOf(want tenancy.DefaultBinding) logicalcluster.Name {
	provider, err := b.resolve(logicalcluster.NewPath(want.Path), want.Export)
	if err != nil {
		return ""
	}
	return provider
}

// makeOne makes one binding, or leads it on, and tells in s what has become of it. The error
// is one of a request.
func (b *Bindings) makeOne(ctx context.Context, lc *corev1alpha1.LogicalCluster, want tenancy.DefaultBinding, s *state) error {
	cluster := logicalcluster.From(lc)
	name := apis.DefaultBindingName(cluster, want.Path, want.Export)
	known, err := b.known(client.Key{Cluster: cluster, Name: name})
	exists := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if exists && (known.Spec.Reference.Export == nil || *known.Spec.Reference.Export != apisv1alpha2.ExportBindingReference{Path: want.Path, Name: want.Export}) {
		s.failed = append(s.failed, another(name, want))
		return nil
	}
	if exists && !want.Maintain {
		s.wait(known)
		return nil
	}
	export, err := b.exportOf(cluster, want)
	switch {
	case err != nil:
		s.waiting = append(s.waiting, name)
		return err // it may exist
	case export == nil && exists:
		s.wait(known) // it says itself that its export is gone
	case export == nil:
		s.failed = append(s.failed, missing(want))
	case exists:
		s.wait(known)
		if updated, changed := maintained(known, export); changed && known.DeletionTimestamp == nil {
			err = b.commit(ctx, cluster, known, updated)
			return s.failure(name, err)
		}
	default:
		done, err := b.makeNew(ctx, lc, bindingFor(cluster, want, export), export)
		if !done {
			s.waiting = append(s.waiting, name)
		}
		if apierrors.IsAlreadyExists(err) {
			return nil // the informer is behind
		}
		return s.failure(name, err)
	}
	return nil
}

// makeNew makes a binding, and reports whether it is bound already. In logical clusters that
// are there it is made as their users would, whose quotas and webhooks have a say.
func (b *Bindings) makeNew(ctx context.Context, lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) (bool, error) {
	if waits(lc) || isSystems(binding) {
		bound, err := b.binder.Bind(ctx, lc, binding, export)
		if bound != nil {
			b.mu.Lock()
			b.made[logicalcluster.From(lc)] = append(b.made[logicalcluster.From(lc)], bound)
			b.mu.Unlock()
		}
		if bound != nil || err != nil {
			return bound != nil && err == nil, err
		}
	}
	return false, b.create(ctx, logicalcluster.From(lc), binding)
}

// failure notes that a write failed. A conflict tells only that somebody was quicker.
func (s *state) failure(name string, err error) error {
	if err == nil || apierrors.IsConflict(err) {
		return err
	}
	s.failed = append(s.failed, fmt.Sprintf("APIBinding %s cannot be written, and it is tried again: %v", name, err))
	return fmt.Errorf("writing the APIBinding %s: %w", name, err)
}

// wait notes that a binding is waited for, if it is.
func (s *state) wait(binding *apisv1alpha2.APIBinding) {
	if binding.DeletionTimestamp != nil || !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
		s.waiting = append(s.waiting, binding.Name)
	}
}

// exportOf returns the export of a default binding, or nil if there is none. Should it come
// later, the logical cluster is looked at again.
func (b *Bindings) exportOf(cluster logicalcluster.Name, want tenancy.DefaultBinding) (*apisv1alpha2.APIExport, error) {
	path := logicalcluster.NewPath(want.Path)
	b.ofExports.Remember(cluster, path.Join(want.Export).String())
	provider, err := b.resolve(path, want.Export)
	if err != nil || provider == "" {
		return nil, err
	}
	export, err := b.export(client.Key{Cluster: provider, Name: want.Export})
	if apierrors.IsNotFound(err) || err == nil && export.DeletionTimestamp != nil {
		return nil, nil //nolint:nilnil // there is none
	}
	return export, err
}
