package serving

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
)

// OwnAnswers records, for a server that forwards requests to others, which audit
// them, those that it answers itself: what is refused at the door leaves a trace
// there. A nil OwnAnswers records nothing.
type OwnAnswers struct {
	backend audit.Backend
	policy  audit.PolicyRuleEvaluator
}

// OwnAnswer is a request and what was answered.
type OwnAnswer struct {
	// Request is the request as the client sent it, and Info what it is about.
	Request *http.Request
	Info    *apirequest.RequestInfo
	// User is who sent it; nil where that was not found out.
	User user.Info
	// AuditID identifies it in all servers' events.
	AuditID string
	// Cluster and Path are the logical cluster, by name or as a path, as far as
	// they are known.
	Cluster logicalcluster.Name
	Path    logicalcluster.Path
	// Received is when it arrived.
	Received time.Time
	// Status is the answer.
	Status metav1.Status
}

// NewOwnAnswers opens the backends of o. It returns nil if there are none.
func NewOwnAnswers(o *AuditOptions) (*OwnAnswers, error) {
	c := &genericapiserver.Config{}
	if err := o.ApplyTo(c); err != nil {
		return nil, err
	}
	if c.AuditBackend == nil {
		return nil, nil //nolint:nilnil // as documented
	}
	return &OwnAnswers{backend: c.AuditBackend, policy: c.AuditPolicyRuleEvaluator}, nil
}

// Run runs the backends until ctx is done, and returns when what was recorded
// has been written.
func (o *OwnAnswers) Run(ctx context.Context) error {
	if err := o.backend.Run(ctx.Done()); err != nil {
		return err
	}
	<-ctx.Done()
	o.backend.Shutdown()
	return nil
}

// Record writes an event about the answer, if the policy asks for one. It has
// no other stages than ResponseComplete, and no content.
func (o *OwnAnswers) Record(a OwnAnswer) {
	if o == nil {
		return
	}
	ctx := audit.WithAuditContext(apirequest.WithRequestInfo(a.Request.Context(), a.Info))
	if a.User != nil {
		ctx = apirequest.WithUser(ctx, a.User)
	}
	attributes, err := apifilters.GetAuthorizerAttributes(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A request cannot be audited", "uri", a.Request.URL.RequestURI())
		return
	}
	rule := o.policy.EvaluatePolicyRule(attributes)
	audit.ObservePolicyLevel(ctx, rule.Level)
	ac := audit.AuditContextFrom(ctx)
	if err := ac.Init(rule, o.backend); err != nil || rule.Level == auditinternal.LevelNone {
		return
	}
	audit.WithAuditID(ctx, types.UID(a.AuditID))
	audit.LogRequestMetadata(ctx, a.Request, a.Received, attributes)
	annotations := a.annotations()
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		audit.AddAuditAnnotation(ctx, key, annotations[key])
	}
	ac.SetEventResponseStatus(&a.Status)
	ac.ProcessEventStage(ctx, auditinternal.StageResponseComplete)
}

// annotations are what servers that forward nothing say, too.
func (a *OwnAnswer) annotations() map[string]string {
	annotations := map[string]string{}
	if a.Cluster != "" {
		annotations[auditClusterKey] = a.Cluster.String()
	}
	if !a.Path.Empty() {
		annotations[auditPathKey] = a.Path.String()
	}
	if a.Status.Code == http.StatusForbidden {
		annotations["authorization.k8s.io/decision"] = "forbid"
		annotations["authorization.k8s.io/reason"] = a.Status.Message
	}
	return annotations
}
