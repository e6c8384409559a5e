// Package admission decides what may be written: in each logical cluster by
// what is configured there, for built-in and custom resources alike.
//
//	mutating    MergedVersion ─ NamespaceLifecycle ─ WorkspaceOwner ─ WorkspaceType ─ APIKinds ─ CachedResource ─ PathAnnotation ─ PermissionClaims ─ MutatingAdmissionPolicy ─ MutatingAdmissionWebhook ─ DryRun ─ ReservedMetadata ─ Limits
//	validating  WorkspaceType ─ APIKinds ─ CachedResource ─ PathAnnotation ─ PermissionClaims ─ Initialization ─ ReservedMetadata ─ Limits ─ PolicyParameterAccess ─ ValidatingAdmissionPolicy ─ ValidatingAdmissionWebhook ─ ResourceQuota
//
// The plugins stand in kube-apiserver's order; this package assembles them. Each
// looks up in a map whether the logical cluster has anything configured. If it
// has not, that is all.
//
//	merged          versions of objects that were read of all shards
//	lifecycle       NamespaceLifecycle: no objects in namespaces that end
//	workspaceowner  who created a Workspace is written on it
//	workspacetype   the type of a new Workspace, and who may use it; what is valid in types
//	apikinds        what is valid in exports and bindings of APIs, and who may bind
//	cachedresource  what can be replicated because a cached resource says so
//	pathannotation  the path of their logical cluster on exports, bindings, types and cached resources
//	claims          what providers may write through the views of their exports
//	initialization  what initializers and terminators may write into LogicalClusters
//	policy          admission policies, validating and mutating, and who may name their parameters
//	webhook         admission webhooks, validating and mutating
//	reserved        annotations, labels and fields that only the system may set
//	limits          how much a logical cluster may store
//	quota           ResourceQuota
//	percluster      what plugins know of each logical cluster, for the others here
package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/admission/apikinds"
	"github.com/shardplane/shardplane/pkg/admission/cachedresource"
	"github.com/shardplane/shardplane/pkg/admission/claims"
	"github.com/shardplane/shardplane/pkg/admission/initialization"
	"github.com/shardplane/shardplane/pkg/admission/lifecycle"
	"github.com/shardplane/shardplane/pkg/admission/limits"
	"github.com/shardplane/shardplane/pkg/admission/merged"
	"github.com/shardplane/shardplane/pkg/admission/pathannotation"
	"github.com/shardplane/shardplane/pkg/admission/policy"
	"github.com/shardplane/shardplane/pkg/admission/policy/remoteparams"
	"github.com/shardplane/shardplane/pkg/admission/quota"
	"github.com/shardplane/shardplane/pkg/admission/reserved"
	"github.com/shardplane/shardplane/pkg/admission/webhook"
	"github.com/shardplane/shardplane/pkg/admission/workspaceowner"
	"github.com/shardplane/shardplane/pkg/admission/workspacetype"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// Config is what admission needs.
type Config struct {
	// Clients reaches the server itself as system:masters.
	Clients *client.Factory
	// Namespaces and ResourceQuotas are those of all logical clusters of the
	// server. Whoever made these informers runs them.
	Namespaces     *client.Informer[*corev1.Namespace]
	ResourceQuotas *client.Informer[*corev1.ResourceQuota]
	// Hooks judge writes. Whoever made them runs them.
	Hooks Hooks
	// RemoteParams reads parameters of policies on other shards; nil where there are none.
	RemoteParams *remoteparams.Cache
	// Local reports whether a logical cluster is on this shard.
	Local func(cluster logicalcluster.Name) bool
	// Authorizer answers expressions that ask for access. It decides in the
	// logical cluster of its context.
	Authorizer authorizer.UnconditionalAuthorizer
	// Webhooks call admission webhooks; at public addresses only if nil.
	Webhooks *webhooktransport.Tenants
	// NoCachedResources has no new CachedResources made.
	NoCachedResources bool
	// WebhookCalls is how many admission webhooks are called at a time for one
	// logical cluster; 0 is webhooktransport.DefaultCallsPerCluster.
	WebhookCalls int
	// WorkspaceTypes says what type a new Workspace has, and who may use it.
	WorkspaceTypes workspacetype.Config
	// FindCluster finds the LogicalClusters of the shard, whose paths objects say.
	FindCluster pathannotation.Find
	// APIKinds says which exports of APIs there are, and who may bind them.
	APIKinds apikinds.Config
	// BuiltIn reports whether a resource is one of the server itself.
	BuiltIn func(ctx context.Context, resource schema.GroupResource) bool
	// Claims decides what may be written by permission claims.
	Claims claims.Config
	// Limits says how much a logical cluster may store.
	Limits limits.Config
	// OwnVersion returns what a resource version says to this shard.
	OwnVersion func(version string) (string, error)
}

// Hooks are the webhooks and policies of all logical clusters: of the shard, and of
// providers on others.
type Hooks struct {
	MutatingWebhooks   *replicas.Dual[*admissionregistrationv1.MutatingWebhookConfiguration]
	ValidatingWebhooks *replicas.Dual[*admissionregistrationv1.ValidatingWebhookConfiguration]
	MutatingPolicies   *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicy]
	MutatingBindings   *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicyBinding]
	ValidatingPolicies *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicy]
	ValidatingBindings *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicyBinding]
}

// Admission is the chain of plugins.
type Admission struct {
	chain  admission.Interface
	params *policy.Params
	quota  *quota.Plugin
}

// excluded are resources that webhooks and policies do not see: those that only
// ask and store nothing, so that nobody can be locked out, and the
// LogicalCluster, which belongs to the Workspace in the logical cluster above:
// who may write in a workspace must not keep its owner from deleting it.
var excluded = append([]schema.GroupResource{corev1alpha1.Resource("logicalclusters")}, unstored...)

// unstored are resources that only ask and store nothing.
var unstored = []schema.GroupResource{
	authenticationv1.Resource("selfsubjectreviews"),
	authenticationv1.Resource("tokenreviews"),
	authorizationv1.Resource("localsubjectaccessreviews"),
	authorizationv1.Resource("selfsubjectaccessreviews"),
	authorizationv1.Resource("selfsubjectrulesreviews"),
	authorizationv1.Resource("subjectaccessreviews"),
}

// named is a plugin and the name by which logs know it.
type named struct {
	name   string
	plugin admission.Interface
}

// New assembles the plugins. Run the result, and all informers of the configuration,
// before anything is written.
func New(c Config) (*Admission, error) {
	a := &Admission{params: policy.NewParams(c.Clients, c.RemoteParams), quota: quota.New(c.Clients, c.ResourceQuotas)}
	hooks := c.Hooks
	webhooks := webhook.Config{
		Clients: c.Clients, Namespaces: c.Namespaces, Local: c.Local, Authorizer: c.Authorizer, Excluded: excluded,
		Transport: cmp.Or(c.Webhooks, &webhooktransport.Tenants{}), Calls: webhooktransport.NewCalls(c.WebhookCalls),
	}
	policies := policy.Config{Clients: c.Clients, Namespaces: c.Namespaces, Local: c.Local, Authorizer: c.Authorizer, Excluded: excluded, Params: a.params}
	c.Limits.Unstored = unstored
	var err error
	a.chain, err = chain(
		named{"MergedVersion", merged.New(c.OwnVersion)},
		named{"NamespaceLifecycle", lifecycle.New(lifecycle.Config{Clients: c.Clients, Namespaces: c.Namespaces, LogicalCluster: c.Limits.LogicalCluster, Unstored: unstored})},
		named{"WorkspaceOwner", workspaceowner.New()},
		named{"WorkspaceType", workspacetype.New(c.WorkspaceTypes)},
		named{"APIKinds", apikinds.New(c.APIKinds)},
		named{"CachedResource", cachedresource.New(cachedresource.Config{Clients: c.Clients, BuiltIn: c.BuiltIn, Disabled: c.NoCachedResources})},
		named{"PathAnnotation", pathannotation.New(c.FindCluster)},
		named{"PermissionClaims", claims.New(c.Claims)},
		named{"PolicyLimits", policy.NewLimits(hooks.MutatingPolicies, hooks.ValidatingPolicies, hooks.MutatingBindings, hooks.ValidatingBindings)},
		named{"MutatingAdmissionPolicy", reserved.Guard(policy.NewMutating(policies, hooks.MutatingPolicies, hooks.MutatingBindings))},
		named{"MutatingAdmissionWebhook", reserved.Guard(webhook.NewMutating(webhooks, hooks.MutatingWebhooks))},
		named{"DryRun", storage.NewDryRunAdmission()},
		named{"Initialization", initialization.New()},
		named{"ReservedMetadata", reserved.New()},
		named{"Limits", limits.New(c.Limits)},
		named{"PolicyParameterAccess", policy.NewAccess(policies)},
		named{"ValidatingAdmissionPolicy", policy.NewValidating(policies, hooks.ValidatingPolicies, hooks.ValidatingBindings)},
		named{"ValidatingAdmissionWebhook", webhook.NewValidating(webhooks, hooks.ValidatingWebhooks)},
		named{"ResourceQuota", a.quota},
	)
	return a, err
}

// chain makes one plugin of many. Upstream's registry of plugins is the only
// way to its handler that calls mutating plugins again after others have
// changed the object.
func chain(all ...named) (admission.Interface, error) {
	registry := admission.NewPlugins()
	names := make([]string, 0, len(all))
	for _, n := range all {
		registry.Register(n.name, func(io.Reader) (admission.Interface, error) { return n.plugin, nil })
		names = append(names, n.name)
	}
	made, err := registry.NewFromPlugins(names, noConfig{}, admission.PluginInitializers{}, nil)
	if err != nil {
		return nil, fmt.Errorf("assembling admission: %w", err)
	}
	return made, nil
}

// noConfig says that no plugin has a configuration file.
type noConfig struct{}

// ConfigFor implements admission.ConfigProvider.
func (noConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }

// Interface returns the chain.
func (a *Admission) Interface() admission.Interface { return a.chain }

// Run does what plugins have to do beside requests, until ctx ends.
func (a *Admission) Run(ctx context.Context) error {
	var (
		group    sync.WaitGroup
		ofParams error
	)
	group.Go(func() { ofParams = a.params.Run(ctx) })
	ofQuota := a.quota.Run(ctx)
	group.Wait()
	return errors.Join(ofParams, ofQuota)
}
