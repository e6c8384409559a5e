// Package defaults creates the default bindings of a logical cluster, which its type defines in spec.defaultAPIBindings. It
// acts as the system, because admission has checked that the author of the type may bind the exports.
//
//	type and the types it extends ─► wanted exports ─► APIBindings, claims accepted
//	                                                       │ all bound
//	                      initializer system:apibindings ◄─┘ removed
//
// Bindings are created before a logical cluster becomes Ready. If the type specifies Maintain, they are also updated after
// that. The in-memory state only determines which logical clusters are requeued after changes.
package defaults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Config configures Bindings. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	Local *client.Factory
	// LogicalClusters have the index tenancy.TypeIndex.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	Bindings        *client.Informer[*apisv1alpha2.APIBinding]
	// Exports include those of other shards.
	Exports *replicas.Dual[*apisv1alpha2.APIExport]
	// Resolve returns the logical cluster of an export by its path, or "" if it does not exist. It returns client.ErrIncomplete if
	// the export may exist on another shard.
	Resolve func(path logicalcluster.Path, export string) (logicalcluster.Name, error)
	// Binder creates the bindings of new logical clusters.
	Binder Binder
	// BindsSystem is set if logical clusters bind the system exports of root. Otherwise system APIs are always available.
	BindsSystem bool
	// Types looks up types in WorkspaceTypes. TypesComplete returns an error if a type that was not found may exist.
	Types          tenancy.TypeLookup
	TypesComplete  func() error
	WorkspaceTypes reconcile.Watched[*tenancyv1alpha1.WorkspaceType]
}

// Binder creates bindings that are bound from the start.
type Binder interface {
	// Bind creates a binding and returns it after its resources are served, or nil if this takes more than one write.
	Bind(ctx context.Context, lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) (*apisv1alpha2.APIBinding, error)
	// Note records the resources of a binding in the LogicalCluster.
	Note(lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding) *corev1alpha1.LogicalCluster
}

// Bindings creates default bindings. Its methods may be called concurrently, but Make only once at a time for a logical cluster.
type Bindings struct {
	config   Config
	export   func(key client.Key) (*apisv1alpha2.APIExport, error)
	known    func(key client.Key) (*apisv1alpha2.APIBinding, error)
	siblings func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding
	create   func(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) error
	commit   func(ctx context.Context, old, updated *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error)

	// ofTypes contains the types that affect logical clusters, and ofExports the logical clusters that wait for exports.
	ofTypes   tenancy.Dependencies[string]
	ofExports tenancy.Dependencies[logicalcluster.Name]

	// watched contains the logical clusters that are requeued when their bindings change.
	watched sync.Map

	mu sync.Mutex
	// made are bindings that must be recorded in their LogicalClusters.
	made map[logicalcluster.Name][]*apisv1alpha2.APIBinding
}

// NewDefaultBindings returns Bindings and the sources that requeue logical clusters.
func NewDefaultBindings(cfg Config) (*Bindings, []reconcile.Source[client.Key]) {
	b := &Bindings{
		config: cfg,
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
		commit: reconcile.Committer(cfg.Local, kinds.APIBindings),
		made:   map[logicalcluster.Name][]*apisv1alpha2.APIBinding{},
	}
	clusters := cfg.LogicalClusters.Lister()
	return b, []reconcile.Source[client.Key]{
		reconcile.FromInformer(cfg.Bindings, func(binding *apisv1alpha2.APIBinding) []client.Key { return b.watching(logicalcluster.From(binding)) }),
		reconcile.FromInformer(cfg.Exports, func(export *apisv1alpha2.APIExport) []client.Key {
			return keysOf(b.ofExports.Of(apis.IndexByPath(export)...))
		}),
		reconcile.SpreadFromInformer(cfg.WorkspaceTypes, func(wt *tenancyv1alpha1.WorkspaceType) []client.Key {
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

func keysOf(clusters []logicalcluster.Name) []client.Key {
	keys := make([]client.Key, 0, len(clusters))
	for _, cluster := range clusters {
		keys = append(keys, client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	}
	return keys
}

// watching returns the key of a logical cluster that depends on its bindings.
func (b *Bindings) watching(cluster logicalcluster.Name) []client.Key {
	if _, watched := b.watched.Load(cluster); !watched {
		return nil
	}
	return keysOf([]logicalcluster.Name{cluster})
}

func (b *Bindings) watch(cluster logicalcluster.Name, watched bool) {
	if watched {
		b.watched.Store(cluster, true)
	} else {
		b.watched.Delete(cluster)
	}
}

// Forget removes the state of a logical cluster.
func (b *Bindings) Forget(cluster logicalcluster.Name) {
	b.ofExports.Forget(cluster)
	b.watch(cluster, false)
	b.take(cluster)
}

func (b *Bindings) take(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer delete(b.made, cluster)
	return b.made[cluster]
}

// Note records the bindings since the last call. If the result is not written, the controller of bindings records them.
func (b *Bindings) Note(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	for _, bound := range b.take(logicalcluster.From(lc)) {
		lc = b.config.Binder.Note(lc, bound)
	}
	return lc
}

// ensureDefaults is Make for the bindings of the type. watched is set if another reason requires events of bindings.
func (b *Bindings) ensureDefaults(ctx context.Context, lc *corev1alpha1.LogicalCluster, watched bool) (updated *corev1alpha1.LogicalCluster, again bool, err error) {
	cluster := logicalcluster.From(lc)
	waiting := waits(lc)
	if waiting {
		// This must precede the lookup, so that later changes requeue the logical cluster.
		b.watch(cluster, true)
	}
	all, err := b.wanted(lc)
	if err != nil && !waiting && !conditions.Has(lc, tenancyv1alpha1.WorkspaceAPIBindingsReconciled) {
		return lc, again, nil // existing bindings stay
	}
	if errors.Is(err, client.ErrIncomplete) {
		if waiting {
			lc = lc.DeepCopy()
			conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized, tenancyv1alpha1.WorkspaceInitializedWaitingOnAPIBindings, conditionsv1alpha1.ConditionSeverityInfo,
				"Waiting for the state of other shards: %v", err)
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
		failed := b.ensureBinding(ctx, lc, all[i], &s)
		failures = append(failures, failed)
		again = again || len(s.failed) > 0 && failed == nil && b.providerOf(all[i]) == ""
		initial.add(s)
		if all[i].Maintain {
			maintain.add(s)
		}
	}
	if len(initial.failed) == 0 {
		b.ofExports.Forget(cluster) // changes are reported by the bindings
	}
	if waiting {
		lc = initial.withCondition(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized)
		if initial.complete() {
			lc.Status.Initializers = slices.DeleteFunc(lc.Status.Initializers, func(i corev1alpha1.LogicalClusterInitializer) bool {
				return i == tenancyv1alpha1.WorkspaceAPIBindingsInitializer
			})
		}
	}
	switch {
	case maintains:
		lc = maintain.withCondition(lc, tenancyv1alpha1.WorkspaceAPIBindingsReconciled)
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

// wanted returns the default bindings of a logical cluster: one for each export, even if it is referenced by several paths.
func (b *Bindings) wanted(lc *corev1alpha1.LogicalCluster) ([]tenancy.DefaultBinding, error) {
	id := lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey]
	types, err := b.ofTypes.Types(id, b.config.Types).Of(lc)
	if err != nil {
		if incomplete := b.config.TypesComplete(); incomplete != nil {
			return nil, incomplete // the type may exist
		}
		return nil, err
	}
	defaults := types.DefaultBindings()
	all := defaults[:0:0]
	at := map[string]int{}
	for _, want := range defaults {
		if want.IsSystem() && (!want.Maintain || !b.config.BindsSystem) {
			continue // created by adopt, or always available
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

// providerOf returns the logical cluster of a default binding's export, or "" if it is unknown.
func (b *Bindings) providerOf(want tenancy.DefaultBinding) logicalcluster.Name {
	provider, err := b.config.Resolve(logicalcluster.NewPath(want.Path), want.Export)
	if err != nil {
		return ""
	}
	return provider
}

// ensureBinding creates or updates a binding and adds its state to s. It returns errors of requests.
func (b *Bindings) ensureBinding(ctx context.Context, lc *corev1alpha1.LogicalCluster, want tenancy.DefaultBinding, s *state) error {
	cluster := logicalcluster.From(lc)
	name := apis.DefaultBindingName(cluster, want.Path, want.Export)
	known, err := b.known(client.Key{Cluster: cluster, Name: name})
	exists := err == nil
	if exists && (known.Spec.Reference.Export == nil || *known.Spec.Reference.Export != apisv1alpha2.ExportBindingReference{Path: want.Path, Name: want.Export}) {
		s.failed = append(s.failed, fmt.Sprintf("APIBinding %s references another APIExport than %s:%s, which the workspace type references: delete it", name, want.Path, want.Export))
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
		return err // the export may exist
	case export == nil && exists:
		s.wait(known) // its status reports the missing export
	case export == nil:
		s.failed = append(s.failed, fmt.Sprintf("APIExport %s:%s does not exist: create it, or remove it from spec.defaultAPIBindings of the workspace type", want.Path, want.Export))
	case exists:
		s.wait(known)
		claims := accepted(export.Spec.PermissionClaims)
		if known.DeletionTimestamp == nil && !equality.Semantic.DeepEqual(known.Spec.PermissionClaims, claims) {
			updated := known.DeepCopy()
			updated.Spec.PermissionClaims = claims
			_, err = b.commit(ctx, known, updated)
			return s.failure(name, err)
		}
	default:
		done, err := b.createBinding(ctx, lc, bindingFor(cluster, want, export), export)
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

// createBinding creates a binding and reports whether it is bound. In existing logical clusters it is a request, as by
// users.
func (b *Bindings) createBinding(ctx context.Context, lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) (bool, error) {
	ref := binding.Spec.Reference.Export
	if waits(lc) || (tenancy.DefaultBinding{Path: ref.Path, Export: ref.Name}).IsSystem() {
		bound, err := b.config.Binder.Bind(ctx, lc, binding, export)
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

// failure adds the error of a write. A conflict is only retried.
func (s *state) failure(name string, err error) error {
	if err == nil || apierrors.IsConflict(err) {
		return err
	}
	s.failed = append(s.failed, fmt.Sprintf("APIBinding %s cannot be written, retrying: %v", name, err))
	return fmt.Errorf("writing the APIBinding %s: %w", name, err)
}

func (s *state) wait(binding *apisv1alpha2.APIBinding) {
	if binding.DeletionTimestamp != nil || !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
		s.waiting = append(s.waiting, binding.Name)
	}
}

// exportOf returns the export of a default binding, or nil if it does not exist. Its creation requeues the logical cluster.
func (b *Bindings) exportOf(cluster logicalcluster.Name, want tenancy.DefaultBinding) (*apisv1alpha2.APIExport, error) {
	path := logicalcluster.NewPath(want.Path)
	b.ofExports.Remember(cluster, path.Join(want.Export).String())
	provider, err := b.config.Resolve(path, want.Export)
	if err != nil || provider == "" {
		return nil, err
	}
	export, err := b.export(client.Key{Cluster: provider, Name: want.Export})
	if apierrors.IsNotFound(err) || err == nil && export.DeletionTimestamp != nil {
		return nil, nil //nolint:nilnil // not found
	}
	return export, err
}

// Make creates the default bindings of a LogicalCluster, updates its conditions, and removes the initializer when all
// are bound. After an error, which the conditions report, or if again is set, the call must be retried.
func (b *Bindings) Make(ctx context.Context, lc *corev1alpha1.LogicalCluster) (updated *corev1alpha1.LogicalCluster, again bool, err error) {
	lc, adopting, later, failed := b.adopt(ctx, lc)
	updated, again, err = b.ensureDefaults(ctx, lc, adopting)
	return updated, again || later, errors.Join(failed, err)
}

// adopt creates the bindings to the system exports of root. A logical cluster gets the bindings of its type. If it
// was created before root's types were known, it gets all bindings, so that it loses no API. adopting is true until
// all of them are bound, which next records.
func (b *Bindings) adopt(ctx context.Context, lc *corev1alpha1.LogicalCluster) (next *corev1alpha1.LogicalCluster, adopting, again bool, err error) {
	cluster := logicalcluster.From(lc)
	if !b.config.BindsSystem || lc.Annotations[tenancy.SystemBindingsAnnotation] == tenancy.SystemBound || request.IsSystem(cluster) {
		return lc, false, again, nil
	}
	b.watch(cluster, true) // must precede the lookup
	var errs []error
	for _, name := range wantedOfSystem(lc) {
		bound, known, err := b.adoptBinding(ctx, lc, name)
		adopting = adopting || !bound
		again = again || !known
		errs = append(errs, err)
	}
	if !adopting {
		lc = lc.DeepCopy()
		metav1.SetMetaDataAnnotation(&lc.ObjectMeta, tenancy.SystemBindingsAnnotation, tenancy.SystemBound)
	}
	return lc, adopting, again, errors.Join(errs...)
}

// wantedOfSystem returns the names of the system exports that a logical cluster must bind.
func wantedOfSystem(lc *corev1alpha1.LogicalCluster) []string {
	if names := lc.Annotations[tenancy.SystemBindingsAnnotation]; names != "" {
		return slices.DeleteFunc(strings.Split(names, ","), func(name string) bool { return !config.IsRootExport(name) })
	}
	return config.SystemBindings(logicalcluster.From(lc))
}

// adoptBinding creates a binding to an export of root, and reports whether the export is bound, and whether it is
// known.
func (b *Bindings) adoptBinding(ctx context.Context, lc *corev1alpha1.LogicalCluster, name string) (bound, known bool, err error) {
	cluster := logicalcluster.From(lc)
	found := false
	for _, binding := range b.siblings(cluster) {
		if binding.Labels[apis.ExportLabel] != apis.ExportLabelValue(core.RootCluster, name) {
			continue
		}
		found = true
		if binding.DeletionTimestamp == nil && conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
			return true, true, nil
		}
	}
	if found {
		return false, true, nil
	}
	export, err := b.export(client.Key{Cluster: core.RootCluster, Name: name})
	if apierrors.IsNotFound(err) || errors.Is(err, client.ErrIncomplete) {
		return false, false, nil
	}
	if err != nil {
		return false, true, err
	}
	bound, err = b.createBinding(ctx, lc, bindingFor(cluster, tenancy.DefaultBinding{Path: core.RootCluster.String(), Export: name}, export), export)
	if apierrors.IsAlreadyExists(err) {
		return false, true, nil // the informer is behind
	}
	return bound, true, err
}
