// Package webhook calls the admission webhooks of the logical cluster that a
// write is for, and of no other.
//
// Failure policies, timeouts, match conditions, selectors, side effects,
// reinvocation, audit annotations and warnings are upstream's plugin's, which
// knows one cluster: each logical cluster that has configurations gets one of
// its own, made when something is written there, made again when the
// configurations change, and dropped with the last of them. It has no
// goroutines, so that dropping it is all.
//
// Objects say in the annotation kcp.io/cluster where they are, new ones, too.
//
// What the server itself writes is not shown to webhooks: its controllers serve
// all logical clusters, and must not wait for the webhook of one.
package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// Config is what the plugins need.
type Config struct {
	// Clients reaches the server itself as system:masters.
	Clients *client.Factory
	// Namespaces are those of all logical clusters, for namespace selectors.
	Namespaces *client.Informer[*corev1.Namespace]
	// Local reports whether a logical cluster is on this shard.
	Local func(cluster logicalcluster.Name) bool
	// Authorizer answers match conditions that ask for access. It decides in
	// the logical cluster of its context.
	Authorizer authorizer.UnconditionalAuthorizer
	// Transport calls the webhooks.
	Transport *webhooktransport.Tenants
	// Calls bounds the calls, of both kinds together.
	Calls *webhooktransport.Calls
	// Excluded are resources that webhooks never see, such as access reviews.
	Excluded []schema.GroupResource
}

// caller calls the webhooks of one kind.
type caller struct {
	*admission.Handler
	ready *percluster.Judges
	calls *webhooktransport.Calls
	hooks *percluster.Cache[*webhooks]
	// prepare prepares the webhooks of one logical cluster for another.
	prepare func(judge, in logicalcluster.Name) (*webhooks, error)
}

// webhooks are those of a logical cluster.
type webhooks struct {
	*generic.Webhook
	rules ruled
	// selects is set if they are for some namespaces only. elsewhere are those for others,
	// by their logical cluster, of whose namespaces upstream's plugin cannot be told.
	selects   bool
	elsewhere *lru.Cache
}

// maxElsewhere is of how many consumers the webhooks of one provider are prepared that
// are for some namespaces only. For another one they are prepared anew.
const maxElsewhere = 64

// Mutating calls mutating webhooks.
type Mutating struct{ caller }

// Validating calls validating webhooks.
type Validating struct{ caller }

var (
	_ admission.MutationInterface   = &Mutating{}
	_ admission.ValidationInterface = &Validating{}
)

// NewMutating returns the plugin that calls the webhooks of configurations.
func NewMutating(c Config, configurations *replicas.Dual[*admissionregistrationv1.MutatingWebhookConfiguration]) *Mutating {
	return &Mutating{newCaller(c, configurations, func(f *percluster.Factory, cluster logicalcluster.Name) (*webhooks, error) {
		f.MutatingWebhooks = configurations.In(cluster)
		plugin, err := mutating.NewMutatingWebhook(nil)
		if err != nil {
			return nil, err
		}
		made := &webhooks{Webhook: plugin.Webhook}
		for _, configuration := range f.MutatingWebhooks {
			for i := range configuration.Webhooks {
				made.add(configuration.Webhooks[i].Rules, configuration.Webhooks[i].MatchPolicy, configuration.Webhooks[i].NamespaceSelector)
			}
		}
		return made, nil
	})}
}

// NewValidating returns the plugin that calls the webhooks of configurations.
func NewValidating(c Config, configurations *replicas.Dual[*admissionregistrationv1.ValidatingWebhookConfiguration]) *Validating {
	return &Validating{newCaller(c, configurations, func(f *percluster.Factory, cluster logicalcluster.Name) (*webhooks, error) {
		f.ValidatingWebhooks = configurations.In(cluster)
		plugin, err := validating.NewValidatingAdmissionWebhook(nil)
		if err != nil {
			return nil, err
		}
		made := &webhooks{Webhook: plugin.Webhook, rules: ruled{together: true}}
		for _, configuration := range f.ValidatingWebhooks {
			for i := range configuration.Webhooks {
				made.add(configuration.Webhooks[i].Rules, configuration.Webhooks[i].MatchPolicy, configuration.Webhooks[i].NamespaceSelector)
			}
		}
		return made, nil
	})}
}

// Admit implements admission.MutationInterface.
func (m *Mutating) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return m.dispatch(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (v *Validating) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return v.dispatch(ctx, a, o)
}

// add notes what decides whether a webhook is called.
func (h *webhooks) add(rules []admissionregistrationv1.RuleWithOperations, policy *admissionregistrationv1.MatchPolicyType, namespaces *metav1.LabelSelector) {
	h.rules.add(rules, policy)
	if namespaces != nil && len(namespaces.MatchLabels)+len(namespaces.MatchExpressions) > 0 {
		h.selects = true
	}
}

// opener prepares the webhooks of a logical cluster.
type opener func(*percluster.Factory, logicalcluster.Name) (*webhooks, error)

// prepare prepares the webhooks of a logical cluster for what is written in another one,
// or in that one.
func (open opener) prepare(c Config, cluster, in logicalcluster.Name) (*webhooks, error) {
	factory := &percluster.Factory{Namespaces: percluster.NewNamespaceLister(c.Namespaces, in)}
	made, err := open(factory, cluster)
	if err == nil {
		made.elsewhere = lru.New(maxElsewhere)
		err = initialize(made.Webhook, c, factory, in)
	}
	if err != nil {
		return nil, fmt.Errorf("preparing the webhooks of logical cluster %s: %w", cluster, err)
	}
	return made, nil
}

// of returns the webhooks as they are for what is written in a logical cluster that is
// not theirs.
func (h *webhooks) of(in logicalcluster.Name, prepare func() (*webhooks, error)) (*webhooks, error) {
	if !h.selects {
		return h, nil // upstream's plugin looks at no namespace
	}
	if found, ok := h.elsewhere.Get(in); ok {
		return found.(*webhooks), nil
	}
	made, err := prepare()
	if err == nil {
		h.elsewhere.Add(in, made)
	}
	return made, err
}

func newCaller[T client.Object](c Config, configurations *replicas.Dual[T], open opener) caller {
	perCluster := percluster.NewCache(func(cluster logicalcluster.Name) (*webhooks, time.Duration, error) {
		made, err := open.prepare(c, cluster, cluster)
		if err != nil {
			return nil, time.Second, err
		}
		return made, 0, nil
	})
	percluster.Follow(perCluster, configurations, func(cluster logicalcluster.Name) bool { return percluster.Empty(configurations, cluster) })
	return caller{
		Handler: admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update),
		ready:   percluster.NewJudges(c.Namespaces, c.Local, configurations),
		calls:   c.Calls,
		hooks:   perCluster,
		prepare: func(judge, in logicalcluster.Name) (*webhooks, error) { return open.prepare(c, judge, in) },
	}
}

// initialize gives upstream's plugin what its initializers would.
func initialize(hooks *generic.Webhook, c Config, factory *percluster.Factory, cluster logicalcluster.Name) error {
	hooks.SetExternalKubeClientSet(percluster.NewClientset(c.Clients, cluster))
	hooks.SetExternalKubeInformerFactory(factory)
	hooks.SetUnconditionalAuthorizer(c.Authorizer)
	hooks.SetExcludedAdmissionResources(c.Excluded)
	hooks.SetAuthenticationInfoResolverWrapper(c.Transport.Resolver)
	hooks.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	return hooks.ValidateInitialization()
}

// Applies reports whether there are webhooks of the kind that judge a write.
func (c *caller) Applies(ctx context.Context, a admission.Attributes) bool {
	judge, _, err := percluster.Judge(ctx, a)
	return err == nil && c.hooks.Has(judge)
}

func (c *caller) dispatch(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if percluster.IsServer(a.GetUserInfo()) {
		return nil
	}
	judge, in, err := percluster.Judge(ctx, a)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := c.ready.Wait(ctx, a, judge, in); err != nil {
		return err
	}
	hooks, found, err := c.hooks.Get(judge)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if !found {
		return nil
	}
	caller := webhooktransport.Caller{Cluster: in}
	if judge != in {
		caller.Provider = judge
		if hooks, err = hooks.of(in, func() (*webhooks, error) { return c.prepare(judge, in) }); err != nil {
			return apierrors.NewInternalError(err)
		}
	}
	defer percluster.AnnotateCluster(a, in)()
	release, err := take(ctx, c.calls, caller, a, &hooks.rules)
	if err != nil {
		return err
	}
	defer release()
	return hooks.Dispatch(request.WithoutBodies(ctx), a, percluster.Pausing(ctx, o))
}
