// Package webhook calls the admission webhooks of the logical cluster of a write.
//
// Upstream's plugin, which is made for one cluster, implements failure policies, timeouts, match conditions, selectors,
// reinvocation etc. Each logical cluster with webhooks has its own instance of it. The instance is created on the first
// write, replaced after a change of the configurations, and dropped with the last one. It has no goroutines.
//
// Objects that are sent to webhooks always have the annotation kcp.io/cluster.
package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/configuration"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// Config configures the plugins.
type Config struct {
	percluster.Config
	Transport *webhooktransport.Tenants
	// Calls limits the concurrent calls of both kinds of webhooks together.
	Calls *webhooktransport.Calls
}

type caller struct {
	*percluster.Cache[webhooks]
	config Config
	open   opener
	// concurrent is true if the webhooks are called concurrently.
	concurrent bool
}

// webhooks are the webhooks of one logical cluster.
type webhooks struct {
	*generic.Webhook
	rules ruled
	// selects is true if any webhook has a namespace selector. Upstream's plugin can use namespaces of only one logical
	// cluster, so that byConsumer contains other instances, by consumer.
	selects    bool
	byConsumer *lru.Cache
}

// maxConsumers is the number of consumers for which the webhooks of a provider with namespace selectors are cached.
//
//reference:none
const maxConsumers = 64

// NewMutating returns the plugin that calls mutating webhooks.
func NewMutating(c Config, configurations *replicas.Dual[*admissionregistrationv1.MutatingWebhookConfiguration]) percluster.Mutator {
	caller := newCaller(c, configurations, func(f *percluster.Factory, cluster logicalcluster.Name) (*generic.Webhook, generic.Source, error) {
		f.MutatingWebhooks = configurations.In(cluster)
		plugin, err := mutating.NewMutatingWebhook(nil)
		if err != nil {
			return nil, nil, err
		}
		return plugin.Webhook, configuration.NewMutatingWebhookConfigurationManager(f, nil), nil
	})
	return percluster.Mutator{Handler: newHandler(), Admits: caller.dispatch}
}

// NewValidating returns the plugin that calls validating webhooks.
func NewValidating(c Config, configurations *replicas.Dual[*admissionregistrationv1.ValidatingWebhookConfiguration]) percluster.Validator {
	caller := newCaller(c, configurations, func(f *percluster.Factory, cluster logicalcluster.Name) (*generic.Webhook, generic.Source, error) {
		f.ValidatingWebhooks = configurations.In(cluster)
		plugin, err := validating.NewValidatingAdmissionWebhook(nil)
		if err != nil {
			return nil, nil, err
		}
		return plugin.Webhook, configuration.NewValidatingWebhookConfigurationManager(f, nil), nil
	})
	caller.concurrent = true
	return percluster.Validator{Handler: newHandler(), Validates: caller.dispatch}
}

func newHandler() *admission.Handler {
	return admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update)
}

// opener creates upstream's plugin for a logical cluster, and the source of its webhooks.
type opener func(*percluster.Factory, logicalcluster.Name) (*generic.Webhook, generic.Source, error)

// prepare creates the webhooks of a logical cluster for writes to another or the same logical cluster.
func (c *caller) prepare(cluster, in logicalcluster.Name) (*webhooks, error) {
	factory := &percluster.Factory{Namespaces: percluster.NewNamespaceLister(c.config.Namespaces, in)}
	plugin, source, err := c.open(factory, cluster)
	if err == nil {
		err = initialize(plugin, c.config, factory, in)
	}
	if err != nil {
		return nil, fmt.Errorf("preparing the webhooks of logical cluster %s: %w", cluster, err)
	}
	made := &webhooks{Webhook: plugin, rules: ruled{concurrent: c.concurrent}, byConsumer: lru.New(maxConsumers)}
	for _, hook := range source.Webhooks() {
		made.rules.add(hook.GetRules(), hook.GetMatchPolicy())
		namespaces := hook.GetNamespaceSelector()
		made.selects = made.selects || namespaces != nil && len(namespaces.MatchLabels)+len(namespaces.MatchExpressions) > 0
	}
	return made, nil
}

// forConsumer returns the webhooks of source for writes to a logical cluster that is not their own.
func (c *caller) forConsumer(h *webhooks, source, in logicalcluster.Name) (*webhooks, error) {
	if !h.selects {
		return h, nil // upstream's plugin reads no namespaces
	}
	if found, ok := h.byConsumer.Get(in); ok {
		return found.(*webhooks), nil
	}
	made, err := c.prepare(source, in)
	if err == nil {
		h.byConsumer.Add(in, made)
	}
	return made, err
}

func newCaller[T client.Object](config Config, configurations *replicas.Dual[T], open opener) *caller {
	c := &caller{config: config, open: open}
	c.Cache = percluster.NewCache(func(cluster logicalcluster.Name) (*webhooks, time.Duration, error) {
		made, err := c.prepare(cluster, cluster)
		if err != nil {
			return nil, time.Second, err
		}
		return made, 0, nil
	}, percluster.NewPrerequisites(config.Namespaces, config.Local, configurations))
	percluster.Follow(c.Cache, configurations, func(cluster logicalcluster.Name) bool { return len(configurations.In(cluster)) == 0 })
	return c
}

// initialize does the work of upstream's plugin initializers.
func initialize(hooks *generic.Webhook, c Config, factory *percluster.Factory, cluster logicalcluster.Name) error {
	hooks.SetExternalKubeClientSet(percluster.NewClientset(c.Clients, cluster))
	hooks.SetExternalKubeInformerFactory(factory)
	hooks.SetUnconditionalAuthorizer(c.Authorizer)
	hooks.SetExcludedAdmissionResources(c.Excluded)
	hooks.SetAuthenticationInfoResolverWrapper(c.Transport.Resolver)
	hooks.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	return hooks.ValidateInitialization()
}

func (c *caller) dispatch(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	hooks, source, in, err := c.For(ctx, a)
	if err != nil || hooks == nil {
		return err
	}
	caller := webhooktransport.Caller{Cluster: in}
	if source != in {
		caller.Provider = source
		if hooks, err = c.forConsumer(hooks, source, in); err != nil {
			return apierrors.NewInternalError(err)
		}
	}
	defer percluster.AnnotateCluster(a, in)()
	release, err := take(ctx, c.config.Calls, caller, a, &hooks.rules)
	if err != nil {
		return err
	}
	defer release()
	return hooks.Dispatch(request.WithoutBodies(ctx), a, percluster.Pausing(ctx, o))
}

// take waits for slots for the webhook calls of a request; the caller must call release. It rejects requests
// that match more webhooks than may be called concurrently, because the server evaluates the conditions of
// each. This also applies to webhooks that would be called sequentially.
func take(ctx context.Context, calls *webhooktransport.Calls, caller webhooktransport.Caller, a admission.Attributes, rules *ruled) (release func(), err error) {
	n := rules.match(a)
	if n == 0 {
		return func() {}, nil
	}
	if n > calls.Limit() {
		return nil, admission.NewForbidden(a, fmt.Errorf("the rules of %d webhooks match the request, at most %d allowed per request and concurrently per workspace (%s): narrow the rules, or delete webhooks",
			n, calls.Limit(), webhooktransport.FlagCalls))
	}
	if !rules.concurrent {
		n = 1
	}
	return calls.Take(ctx, caller, n)
}

// ruled contains the rules of webhooks. concurrent is true if they are called concurrently.
type ruled struct {
	webhooks   [][]admissionregistrationv1.RuleWithOperations
	concurrent bool
}

// add adds the rules of a webhook. If the match policy is not Exact, all groups and versions of a resource match.
func (r *ruled) add(all []admissionregistrationv1.RuleWithOperations, policy *admissionregistrationv1.MatchPolicyType) {
	if policy == nil || *policy != admissionregistrationv1.Exact {
		wider := make([]admissionregistrationv1.RuleWithOperations, 0, len(all))
		for _, rule := range all {
			rule.APIGroups, rule.APIVersions = []string{"*"}, []string{"*"}
			wider = append(wider, rule)
		}
		all = wider
	}
	r.webhooks = append(r.webhooks, all)
}

// match returns the number of webhooks whose rules match a request.
func (r *ruled) match(a admission.Attributes) (n int) {
	if rules.IsExemptAdmissionConfigurationResource(a) {
		return 0
	}
	for _, webhook := range r.webhooks {
		for _, rule := range webhook {
			if m := (rules.Matcher{Rule: rule, Attr: a}); m.Matches() {
				n++
				break
			}
		}
	}
	return n
}
