package reserved

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/sdk/apis/apis"
	"github.com/kcp-dev/sdk/apis/cache"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/migration"
	"github.com/kcp-dev/sdk/apis/tenancy"
	"github.com/kcp-dev/sdk/apis/topology"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	validation "k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/admission/percluster"
	apirules "github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

var (
	errStatus           = errors.New("only the system may write the status")
	errOtherShardObject = errors.New("a shard may write only its own Shard and Lease in root on another shard")
	errShardCluster     = errors.New("shards must be registered in the logical cluster root")
	errScope            = fmt.Errorf("metadata.annotations[%s]: Shards must be visible in all regions: remove the annotation", request.ScopeAnnotation)
)

// reviews are the API groups of access and token reviews, which are not stored.
var reviews = []string{authorizationv1.GroupName, authenticationv1.GroupName}

// apiGroups are the API groups of the system, in which users must not define kinds.
var apiGroups = []string{apirules.InternalGroup, apis.GroupName, cache.GroupName, core.GroupName, migration.GroupName, tenancy.GroupName, topology.GroupName}

// workspaceFields are the fields of a Workspace that only the system sets.
var workspaceFields = [][]string{{"spec", "cluster"}, {"spec", "URL"}}

// checkCreate rejects Shards outside of root, because servers would use them as shards of the installation,
// and CustomResourceDefinitions in API groups of the system.
func checkCreate(ctx context.Context, a admission.Attributes) error {
	if a.GetOperation() != admission.Create {
		return nil
	}
	switch a.GetResource().GroupResource() {
	case shards:
		if cluster, _ := request.ClusterFrom(ctx); cluster.Name != core.RootCluster {
			return admission.NewForbidden(a, errShardCluster)
		}
	case definitions:
		if crd, ok := a.GetObject().(*apiextensions.CustomResourceDefinition); ok && slices.Contains(apiGroups, crd.Spec.Group) {
			return admission.NewForbidden(a, fmt.Errorf("spec.group %s is reserved for system APIs: choose another group", crd.Spec.Group))
		}
	default:
	}
	return nil
}

// checkScope rejects Shards whose annotation restricts replication to a region, unless the annotation is unchanged.
func checkScope(a admission.Attributes) error {
	if a.GetResource().GroupResource() != shards || a.GetOperation() == admission.Delete {
		return nil
	}
	scope := func(of runtime.Object) string {
		if obj, ok := metadataOf(of); ok {
			return obj.GetAnnotations()[request.ScopeAnnotation]
		}
		return ""
	}
	switch now := scope(a.GetObject()); now {
	case "", request.ScopeInstallation, scope(a.GetOldObject()):
		return nil
	default:
		return admission.NewForbidden(a, errScope)
	}
}

// checkShard rejects writes of another shard, except of its own Shard and Lease.
func checkShard(ctx context.Context, a admission.Attributes) error {
	shard, ok := identity.ShardOf(ctx, a.GetUserInfo())
	if !ok || slices.Contains(reviews, a.GetResource().Group) {
		return nil
	}
	name := a.GetName()
	if obj, ok := metadataOf(a.GetObject()); ok && name == "" {
		name = obj.GetName()
	}
	switch a.GetResource().GroupResource() {
	case shards:
		ok = name == shard
	case coordinationv1.Resource("leases"):
		ok = a.GetNamespace() == shardload.LeaseNamespace && name == shardload.LeaseName(shard)
	default:
		ok = false
	}
	if ok && shard != "" {
		return nil
	}
	return admission.NewForbidden(a, errOtherShardObject)
}

// deletes reports whether a write deletes an object or changes its owner references. If an owner does not
// exist, the garbage collector deletes the object with the rights of the system.
func deletes(a admission.Attributes) bool {
	now, ok := metadataOf(a.GetObject())
	before, existed := metadataOf(a.GetOldObject())
	return a.GetOperation() == admission.Delete ||
		a.GetOperation() == admission.Update && ok && existed && !equality.Semantic.DeepEqual(now.GetOwnerReferences(), before.GetOwnerReferences())
}

// checkBinding rejects the deletion of the system's bindings in root, which would delete the objects of the servers.
func checkBinding(ctx context.Context, a admission.Attributes) error {
	if cluster, _ := request.ClusterFrom(ctx); !deletes(a) || cluster.Name != core.RootCluster {
		return nil
	}
	path, _ := field(a.GetOldObject(), "spec", "reference", "export", "path")
	name, _ := field(a.GetOldObject(), "spec", "reference", "export", "name")
	export, _ := name.(string)
	if path != nil && path != "" && path != core.RootCluster.String() || !config.IsRootExport(export) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("servers need the binding of %s in root, and all workspaces in root would be deleted with it", export))
}

// checkWorkspaceType rejects a type that would add labels to Workspaces that its author must not set.
func checkWorkspaceType(a admission.Attributes, as privilege) error {
	if a.GetOperation() == admission.Delete {
		return nil
	}
	const spec, additional = "spec", "additionalWorkspaceLabels"
	now, _ := field(a.GetObject(), spec, additional)
	before, _ := field(a.GetOldObject(), spec, additional)
	values, _ := now.(map[string]any)
	old, _ := before.(map[string]any)
	for key, value := range values {
		if n, reserved := lookUp(labels, key); reserved && as > n.by && (old == nil || old[key] != value) {
			return denied(a, spec+"."+additional, key, n)
		}
	}
	return nil
}

func checkWorkspace(a admission.Attributes) error {
	switch {
	case a.GetOperation() == admission.Delete:
		return nil
	case a.GetSubresource() == "status":
		return unchangedStatus(a)
	default:
		return unchanged(a, workspaceFields)
	}
}

func unchangedStatus(a admission.Attributes) error {
	now, _ := field(a.GetObject(), "status")
	before, _ := field(a.GetOldObject(), "status")
	if equality.Semantic.DeepEqual(now, before) {
		return nil
	}
	return admission.NewForbidden(a, errStatus)
}

func unchanged(a admission.Attributes, fields [][]string) error {
	for _, path := range fields {
		now, _ := field(a.GetObject(), path...)
		before, _ := field(a.GetOldObject(), path...)
		if !equality.Semantic.DeepEqual(now, before) {
			return admission.NewForbidden(a, fmt.Errorf("%s is set by the system and cannot be changed", strings.Join(path, ".")))
		}
	}
	return nil
}

func field(obj runtime.Object, path ...string) (any, bool) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || u == nil {
		return nil, false
	}
	value, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
	return value, found && err == nil
}

const (
	// clientSigners is the prefix of the signers of client certificates for this API.
	clientSigners = "kubernetes.io/kube-apiserver-client"
	// nodes is a prefix of reserved user names that have no privileges here.
	nodes = "system:node:"
)

// systemGroups are prefixes of groups that authorize requests.
var systemGroups = []string{
	user.SystemPrivilegedGroup, request.GroupPrefix, request.GroupBindingPrefix, request.GroupCacheReaders, serviceaccount.AllServiceAccountsGroup, identity.ClusterGroupPrefix,
}

// checkSigningRequest rejects a request for a client certificate with a user or group that the system trusts. The
// server signs nothing, but an external signer may trust approvals, which tenants can give to their own requests.
func checkSigningRequest(a admission.Attributes) error {
	csr, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok || a.GetOperation() != admission.Create || a.GetSubresource() != "" || !strings.HasPrefix(csr.Spec.SignerName, clientSigners) {
		return nil
	}
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil {
		return nil // validation rejects it
	}
	content, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil //nolint:nilerr // validation rejects it
	}
	if name := content.Subject.CommonName; strings.HasPrefix(name, request.ReservedPrefix) && !strings.HasPrefix(name, nodes) {
		return admission.NewForbidden(a, fmt.Errorf("the signer %s does not sign for user %q, because the name is reserved: request another common name", csr.Spec.SignerName, name))
	}
	for _, group := range content.Subject.Organization {
		for _, prefix := range systemGroups {
			if strings.HasPrefix(group, prefix) {
				return admission.NewForbidden(a, fmt.Errorf("the signer %s does not sign for group %q, because it has privileges: request another organization", csr.Spec.SignerName, group))
			}
		}
	}
	return nil
}

var (
	errNotCreatedBySystem = errors.New("LogicalClusters are created by the system: create a Workspace")
	// A finalizer would prevent the owner of the Workspace from deleting it.
	errFinalizer        = errors.New("finalizers delay the deletion of the Workspace that owns the logical cluster: only administrators, the system, and providers with an accepted permission claim, through the virtual workspace of their APIExport, may add them")
	errOwnedByWorkspace = errors.New("a logical cluster is deleted with the Workspace that owns it: delete the Workspace (spec.directlyDeletable is not set)")
)

var (
	logicalClusterFields = [][]string{{"spec"}}
	// fixedFields are the fields that administrators must not set either.
	fixedFields = [][]string{{"spec", "createdBy"}, {"spec", "owner"}, {"spec", "initializers"}, {"spec", "terminators"}}
)

const scheduling, initializing, ready, inactive, unavailable, terminating = corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing,
	corev1alpha1.LogicalClusterPhaseReady, corev1alpha1.LogicalClusterPhaseInactive, corev1alpha1.LogicalClusterPhaseUnavailable, corev1alpha1.LogicalClusterPhaseTerminating

// moves are the phases that administrators may set, by current phase. Deletion sets the other phases.
var moves = map[corev1alpha1.LogicalClusterPhaseType][]corev1alpha1.LogicalClusterPhaseType{
	"":           {scheduling, initializing},
	scheduling:   {initializing},
	initializing: {ready},
	ready:        {inactive, unavailable},
	inactive:     {ready},
	unavailable:  {ready},
}

// mayCreateLogicalClusters reports whether a user may create LogicalClusters besides the system.
func mayCreateLogicalClusters(ctx context.Context, u user.Info) bool {
	return identity.MemberOf(ctx, u, request.GroupExternalLogicalClusterAdmin, request.GroupWorkspaceBootstrapper)
}

func checkLogicalCluster(ctx context.Context, a admission.Attributes, as privilege) error {
	if as > administrators && mayCreateLogicalClusters(ctx, a.GetUserInfo()) {
		as = administrators
	}
	switch {
	case a.GetSubresource() == "status" && removable(ctx) != "":
		return nil // checkInitialization checks it
	case a.GetOperation() == admission.Create:
		return admission.NewForbidden(a, errNotCreatedBySystem)
	case a.GetOperation() == admission.Delete:
		if direct, found := field(a.GetOldObject(), "spec", "directlyDeletable"); !found || direct != true {
			return admission.NewForbidden(a, errOwnedByWorkspace)
		}
		return nil
	case a.GetSubresource() == "status" && as == administrators:
		return checkStatus(a)
	case a.GetSubresource() == "status":
		return unchangedStatus(a)
	case as == administrators:
		return unchanged(a, fixedFields)
	case addsFinalizer(a) && !claimed(ctx, a):
		return admission.NewForbidden(a, errFinalizer)
	default:
		return unchanged(a, logicalClusterFields)
	}
}

// claimed reports whether a write comes through the virtual workspace of an APIExport in another logical
// cluster, with an accepted permission claim for the object. Claims of exports in the same logical cluster do
// not count, because its administrators could accept them themselves.
func claimed(ctx context.Context, a admission.Attributes) bool {
	cluster, err := request.ClusterNameFrom(ctx)
	through, _ := request.ThroughFrom(ctx)
	set := claims.From(ctx)
	return err == nil && set != nil && set.Resource() == logicalClusters && through.Mount == request.APIExports && through.Provider != cluster && set.Selection(cluster).Matches(a.GetOldObject())
}

func addsFinalizer(a admission.Attributes) bool {
	now, _ := metadataOf(a.GetObject())
	before, known := metadataOf(a.GetOldObject())
	return now != nil && slices.ContainsFunc(now.GetFinalizers(), func(f string) bool {
		return !known || !slices.Contains(before.GetFinalizers(), f)
	})
}

// checkStatus rejects changes of the status by administrators that are not transitions of the lifecycle.
func checkStatus(a admission.Attributes) error {
	before, now := phaseOf(a.GetOldObject()), phaseOf(a.GetObject())
	if before != now && !slices.Contains(moves[before], now) {
		return admission.NewForbidden(a, fmt.Errorf("status.phase cannot change from %s to %s: the next phases are %v", before, now, moves[before]))
	}
	for _, list := range []struct {
		name string
		in   corev1alpha1.LogicalClusterPhaseType
	}{{"initializers", initializing}, {"terminators", terminating}} {
		had, has := listOf(a.GetOldObject(), "status", list.name), listOf(a.GetObject(), "status", list.name)
		if before != initializing && now == initializing && list.in == initializing {
			if wanted := listOf(a.GetObject(), "spec", list.name); !slices.Equal(has, wanted) {
				return admission.NewForbidden(a, fmt.Errorf("status.initializers must initially equal spec.initializers: %v", wanted))
			}
			continue
		}
		removed := len(has) < len(had) && !slices.ContainsFunc(has, func(id string) bool { return !slices.Contains(had, id) })
		if !slices.Equal(had, has) && (before != list.in || !removed) {
			return admission.NewForbidden(a, fmt.Errorf("entries of status.%s can only be removed, and only while status.phase is %s", list.name, list.in))
		}
		if len(has) > 0 && before == list.in && now != before {
			return admission.NewForbidden(a, fmt.Errorf("status.phase must be %s until status.%s is empty", before, list.name))
		}
	}
	return unchanged(a, [][]string{{"status", "URL"}})
}

func phaseOf(obj runtime.Object) corev1alpha1.LogicalClusterPhaseType {
	phase, _ := field(obj, "status", "phase")
	text, _ := phase.(string)
	return corev1alpha1.LogicalClusterPhaseType(text)
}

func listOf(obj runtime.Object, path ...string) []string {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	list, _, _ := unstructured.NestedStringSlice(u.Object, path...)
	return list
}

// NewInitialization returns the plugin for updates of LogicalClusters through the virtual workspaces of initializers
// and terminators. They may only remove themselves from the status and set conditions.
func NewInitialization() percluster.Validator {
	return percluster.Validator{Handler: admission.NewHandler(admission.Update), Validates: checkInitialization}
}

// removable returns the field of the status of a LogicalCluster that a request may change through the virtual
// workspace of an initializer or terminator. It returns "" for other requests.
func removable(ctx context.Context) string {
	through, _ := request.ThroughFrom(ctx)
	switch through.Mount {
	case request.InitializingWorkspaces:
		return "initializers"
	case request.TerminatingWorkspaces:
		return "terminators"
	default:
		return ""
	}
}

func checkInitialization(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	list := removable(ctx)
	if list == "" || a.GetResource().GroupResource() != logicalClusters {
		return nil
	}
	through, _ := request.ThroughFrom(ctx)
	own := through.Provider.Path().Join(through.VirtualWorkspace).String()
	before, after := statusOf(a.GetOldObject()), statusOf(a.GetObject())
	waitedFor, _, _ := unstructured.NestedStringSlice(before, list)
	waitsFor, _, _ := unstructured.NestedStringSlice(after, list)
	without := slices.DeleteFunc(slices.Clone(waitedFor), func(id string) bool { return id == own })
	path := validation.NewPath("status")
	var errs validation.ErrorList
	if !slices.Equal(waitsFor, waitedFor) && !slices.Equal(waitsFor, without) {
		errs = append(errs, validation.Invalid(path.Child(list), waitsFor, fmt.Sprintf("only %s may be removed through this virtual workspace", own)))
	}
	for _, status := range []map[string]any{before, after} {
		delete(status, list)
		delete(status, "conditions")
	}
	if !equality.Semantic.DeepEqual(before, after) {
		errs = append(errs, validation.Forbidden(path, fmt.Sprintf("only %s and conditions may be changed through this virtual workspace", list)))
	}
	return percluster.Invalid(a, errs)
}

func statusOf(obj runtime.Object) map[string]any {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	status, _, _ := unstructured.NestedMap(u.Object, "status")
	return status
}
