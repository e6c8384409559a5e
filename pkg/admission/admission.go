// Package admission assembles the admission plugins of a shard; New lists them in their order, which follows
// kube-apiserver. They apply to built-in and custom resources alike. Each plugin uses only the configuration of
// the logical cluster of the request, so a logical cluster without any costs one map lookup.
//
//	lifecycle       NamespaceLifecycle
//	workspacetype   sets the type of new Workspaces, and validates WorkspaceTypes
//	apikinds        validates API exports and bindings, and authorizes the use of exports
//	cachedresource  validates cached resources
//	claims          restricts writes by permission claims
//	policy          mutating and validating admission policies
//	webhook         mutating and validating admission webhooks
//	reserved        sets and protects reserved metadata and fields
//	limits          bounds the storage of logical clusters
//	quota           ResourceQuota
//	percluster      state per logical cluster, which several plugins use
package admission

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/admission/apikinds"
	"github.com/shardplane/shardplane/pkg/admission/cachedresource"
	"github.com/shardplane/shardplane/pkg/admission/claims"
	"github.com/shardplane/shardplane/pkg/admission/lifecycle"
	"github.com/shardplane/shardplane/pkg/admission/limits"
	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/admission/policy"
	"github.com/shardplane/shardplane/pkg/admission/policy/remoteparams"
	"github.com/shardplane/shardplane/pkg/admission/quota"
	"github.com/shardplane/shardplane/pkg/admission/reserved"
	"github.com/shardplane/shardplane/pkg/admission/webhook"
	"github.com/shardplane/shardplane/pkg/admission/workspacetype"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// Config configures New.
type Config struct {
	Clients *client.Factory
	// Namespaces, ResourceQuotas and Hooks cover all logical clusters. The caller runs them.
	Namespaces     *client.Informer[*corev1.Namespace]
	ResourceQuotas *client.Informer[*corev1.ResourceQuota]
	Hooks          Hooks
	// RemoteParams reads parameters of policies on other shards; may be nil.
	RemoteParams *remoteparams.Cache
	// Local reports whether a logical cluster is on this shard.
	Local func(cluster logicalcluster.Name) bool
	// Authorizer evaluates authorizer expressions, in the logical cluster of the context.
	Authorizer authorizer.UnconditionalAuthorizer
	// Webhooks is the transport for admission webhooks; nil permits public addresses only.
	Webhooks *webhooktransport.Tenants
	// NoCachedResources rejects new CachedResources.
	NoCachedResources bool
	// WebhookCalls is webhooktransport.DefaultCallsPerCluster if it is 0.
	WebhookCalls   int
	WorkspaceTypes workspacetype.Config
	FindCluster    reserved.FindCluster
	APIKinds       apikinds.Config
	// BuiltIn reports whether a resource is built in.
	BuiltIn func(ctx context.Context, resource schema.GroupResource) bool
	Claims  claims.Config
	Limits  limits.Config
	// OwnVersion returns the part of a merged resourceVersion that belongs to this shard.
	OwnVersion func(version string) (string, error)
}

// Hooks are the webhooks and policies of all logical clusters, including replicas from other shards.
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

// excluded resources bypass webhooks and policies. Access reviews bypass them because a failing webhook would lock
// users out. LogicalClusters bypass them because users of a workspace must not prevent its owner from deleting it.
var excluded = append([]schema.GroupResource{corev1alpha1.Resource("logicalclusters")}, unstored...)

// unstored resources are reviews, which are created but not stored.
var unstored = []schema.GroupResource{
	authenticationv1.Resource("selfsubjectreviews"),
	authenticationv1.Resource("tokenreviews"),
	authorizationv1.Resource("localsubjectaccessreviews"),
	authorizationv1.Resource("selfsubjectaccessreviews"),
	authorizationv1.Resource("selfsubjectrulesreviews"),
	authorizationv1.Resource("subjectaccessreviews"),
}

// NewChain assembles the plugins. The result and all informers in c must run before objects are written.
func NewChain(ctx context.Context, c Config) (a *Admission, err error) {
	a = &Admission{params: policy.NewParams(ctx, c.Clients, c.RemoteParams), quota: quota.NewQuota(c.Clients, c.ResourceQuotas)}
	a.chain, err = chain(a.plugins(c)...)
	return a, err
}

// plugins returns the plugins in their order. docs/reference/admission-plugins.md is generated from them.
func (a *Admission) plugins(c Config) []named {
	hooks := c.Hooks
	common := percluster.Config{Clients: c.Clients, Namespaces: c.Namespaces, Local: c.Local, Authorizer: c.Authorizer, Excluded: excluded}
	webhooks := webhook.Config{Config: common, Transport: cmp.Or(c.Webhooks, &webhooktransport.Tenants{}), Calls: webhooktransport.NewCalls(c.WebhookCalls)}
	policies := policy.Config{Config: common, Params: a.params}
	c.Limits.Unstored = unstored
	return []named{
		{"MergedVersion", "replaces a resourceVersion that was merged from several shards with the part of this shard", merged(c.OwnVersion)},
		{
			"NamespaceLifecycle", "rejects objects in namespaces that do not exist or are being deleted, and the deletion of the namespace default",
			lifecycle.NewLifecycle(lifecycle.Config{Clients: c.Clients, Namespaces: c.Namespaces, LogicalCluster: c.Limits.LogicalCluster, Unstored: unstored}),
		},
		{"WorkspaceOwner", "records the user who creates a Workspace as its owner", reserved.NewWorkspaceOwner()},
		{"WorkspaceType", "sets the default type of Workspaces, validates their types, and requires the verb use on the type", workspacetype.NewWorkspaceType(c.WorkspaceTypes)},
		{"APIKinds", "validates APIExports, APIBindings, APIResourceSchemas, APIConversions and endpoint slices, and requires the verb bind on the export", apikinds.NewAPIKinds(c.APIKinds)},
		{
			"CachedResource", "validates CachedResources and limits their number",
			cachedresource.NewCachedResource(cachedresource.Config{Clients: c.Clients, BuiltIn: c.BuiltIn, Disabled: c.NoCachedResources}),
		},
		{"PathAnnotation", "sets the annotation kcp.io/path to the path of the logical cluster", reserved.NewPathAnnotation(c.FindCluster)},
		{"PermissionClaims", "restricts writes through the virtual workspace of an export to objects that match the selectors of its permission claims", claims.NewClaims(c.Claims)},
		{
			"PolicyLimits", "limits the expressions and bindings of admission policies in a logical cluster",
			policy.NewLimits(hooks.MutatingPolicies, hooks.ValidatingPolicies, hooks.MutatingBindings, hooks.ValidatingBindings),
		},
		{"MutatingAdmissionPolicy", "applies MutatingAdmissionPolicies", reserved.Guard(policy.NewMutating(policies, hooks.MutatingPolicies, hooks.MutatingBindings))},
		{"MutatingAdmissionWebhook", "calls mutating webhooks", reserved.Guard(webhook.NewMutating(webhooks, hooks.MutatingWebhooks))},
		{"DryRun", "sets the annotation with the name of the logical cluster on objects of dry-run requests, which are not stored", storage.NewDryRunAdmission()},
		{"Initialization", "restricts the changes of initializers and terminators to a LogicalCluster", reserved.NewInitialization()},
		{"ReservedMetadata", "protects metadata and fields that are reserved for the system or for administrators", reserved.NewReserved()},
		{"Limits", "limits the objects, the bytes and the metadata of a logical cluster", limits.NewLimits(c.Limits)},
		{"PolicyParameterAccess", "requires that the author of an admission policy or its binding can read the parameters", policy.NewAccess(common)},
		{"ValidatingAdmissionPolicy", "applies ValidatingAdmissionPolicies", policy.NewValidating(policies, hooks.ValidatingPolicies, hooks.ValidatingBindings)},
		{"ValidatingAdmissionWebhook", "calls validating webhooks", webhook.NewValidating(webhooks, hooks.ValidatingWebhooks)},
		{"ResourceQuota", "enforces ResourceQuotas", a.quota},
	}
}

// chain registers the plugins with upstream, because only upstream's chain reinvokes mutating plugins.
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

// named is a plugin with its description.
type named struct {
	name, does string
	plugin     admission.Interface
}

// noConfig is an admission.ConfigProvider for plugins without a configuration file.
type noConfig struct{}

func (noConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }

// Interface returns the chain.
func (a *Admission) Interface() admission.Interface { return a.chain }

// Run runs the background work of the plugins until ctx ends.
func (a *Admission) Run(ctx context.Context) error {
	var group sync.WaitGroup
	group.Go(func() { a.params.Run(ctx) })
	a.quota.Run(ctx)
	group.Wait()
	return nil
}

// merged replaces merged resourceVersions in updates. Objects in a response of the front-proxy for all shards have
// one. If a client writes such an object back, the version is replaced by the part that belongs to this shard. This
// happens before other plugins run and before storage compares the version.
func merged(ownVersion func(version string) (string, error)) percluster.Mutator {
	return percluster.Mutator{Handler: admission.NewHandler(admission.Update), Admits: func(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
		obj, err := meta.Accessor(a.GetObject())
		if err != nil {
			return nil //nolint:nilerr // without a version there is nothing to replace
		}
		given := obj.GetResourceVersion()
		own, err := ownVersion(given)
		if err == nil && own != given {
			obj.SetResourceVersion(own)
		}
		return err
	}}
}
