package serving

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// auditVirtualWorkspaceKey is the URL path of the virtual workspace, with names of logical clusters.
	auditVirtualWorkspaceKey = "shardplane.io/virtual-workspace"
	auditClusterKey          = logicalcluster.AnnotationKey
	auditShardKey            = request.ShardAnnotation
	auditPathKey             = core.LogicalClusterPathAnnotationKey
	// auditURIKey is the URI that the client sent, with which backends replace the URI of the event.
	auditURIKey = "shardplane.io/request-uri"
)

// AuditOptions are those of kube-apiserver, and a limit for the webhook.
type AuditOptions struct {
	options.AuditOptions

	// WebhookBufferBytes limits the size of the events that are buffered or being sent in batch mode.
	//
	//reference:limit server --audit-webhook-batch-buffer-size | audit events: number in the buffer in batch mode | they are dropped and counted
	//reference:limit server --audit-webhook-batch-buffer-bytes | audit events: size of the buffer in batch mode | they are dropped and counted
	WebhookBufferBytes int64
}

// NewAuditOptions returns the defaults of kube-apiserver: no auditing.
func NewAuditOptions() AuditOptions {
	return AuditOptions{AuditOptions: *options.NewAuditOptions(), WebhookBufferBytes: 128 << 20}
}

// AddFlags adds the flags of o to fs.
func (o *AuditOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.PolicyFile, "audit-policy-file", o.PolicyFile, "audit policy file (audit.k8s.io/v1)")
	log, webhook := &o.LogOptions, &o.WebhookOptions
	fs.StringVar(&log.Path, "audit-log-path", log.Path, "log file for audit events, in JSON; '-' is the standard output")
	fs.IntVar(&log.MaxAge, "audit-log-maxage", log.MaxAge, "number of days to keep rotated log files; 0 keeps them")
	fs.IntVar(&log.MaxBackups, "audit-log-maxbackup", log.MaxBackups, "number of rotated log files to keep; 0 keeps all")
	fs.IntVar(&log.MaxSize, "audit-log-maxsize", log.MaxSize, "size in megabytes at which the log file is rotated")
	fs.StringVar(&webhook.ConfigFile, "audit-webhook-config-file", webhook.ConfigFile, "kubeconfig file of the webhook that receives audit events")
	fs.StringVar(&webhook.BatchOptions.Mode, "audit-webhook-mode", webhook.BatchOptions.Mode, "time at which the webhook receives events: batch (later, several together), blocking (before the response), or blocking-strict (before the response, and before the request is processed)")
	fs.DurationVar(&webhook.InitialBackoff, "audit-webhook-initial-backoff", webhook.InitialBackoff, "time before the first retry of a failed request to the webhook")
	fs.BoolVar(&webhook.TruncateOptions.Enabled, "audit-webhook-truncate-enabled", webhook.TruncateOptions.Enabled, "omit the content of events above 100 KiB")
	batch := &webhook.BatchOptions.BatchConfig
	fs.IntVar(&batch.BufferSize, "audit-webhook-batch-buffer-size", batch.BufferSize, "maximum number of events that are waiting for the webhook or being sent; others are dropped and counted. Only in batch mode")
	fs.IntVar(&batch.MaxBatchSize, "audit-webhook-batch-max-size", batch.MaxBatchSize, "maximum number of events in one request to the webhook; only in batch mode")
	fs.DurationVar(&batch.MaxBatchWait, "audit-webhook-batch-max-wait", batch.MaxBatchWait, "maximum time that an event waits for others; only in batch mode")
	fs.Int64Var(&o.WebhookBufferBytes, flagAuditBufferBytes, o.WebhookBufferBytes,
		"maximum size in bytes of events that are waiting for the webhook or being sent; others are dropped and counted. Only in batch mode")
}

// Validate returns all errors in o.
func (o *AuditOptions) Validate() []error {
	errs := o.AuditOptions.Validate()
	if o.WebhookBufferBytes <= 0 {
		errs = append(errs, fmt.Errorf("--%s is %d, must be at least 1", flagAuditBufferBytes, o.WebhookBufferBytes))
	}
	if o.PolicyFile == "" && (o.LogOptions.Path != "" || o.WebhookOptions.ConfigFile != "") {
		errs = append(errs, errors.New("--audit-policy-file is required with --audit-log-path and --audit-webhook-config-file, because no event is recorded without a policy"))
	}
	if o.PolicyFile != "" && o.LogOptions.Path == "" && o.WebhookOptions.ConfigFile == "" {
		errs = append(errs, errors.New("--audit-policy-file requires --audit-log-path or --audit-webhook-config-file"))
	}
	return errs
}

// ApplyTo opens the backends of o. The server runs them.
func (o *AuditOptions) ApplyTo(c *genericapiserver.Config) error {
	if o.PolicyFile != "" {
		// The policy is loaded twice to return a better error.
		if _, err := policy.LoadPolicyFromFile(o.PolicyFile); err != nil {
			return fmt.Errorf("--audit-policy-file: %w (a policy has apiVersion audit.k8s.io/v1, kind Policy, and rules)", err)
		}
	}
	others := o.AuditOptions
	others.WebhookOptions.ConfigFile = ""
	if err := others.ApplyTo(c); err != nil {
		return fmt.Errorf("audit (--audit-log-path): %w", err)
	}
	if o.PolicyFile != "" && o.WebhookOptions.ConfigFile != "" {
		hook, err := newAuditWebhook(o.WebhookOptions, o.WebhookBufferBytes)
		if err != nil {
			return fmt.Errorf("--audit-webhook-config-file: %w", err)
		}
		if c.AuditBackend != nil {
			hook = audit.Union(c.AuditBackend, hook)
		}
		c.AuditBackend = hook
	}
	if c.AuditBackend != nil {
		c.AuditBackend = uriBackend{c.AuditBackend}
	}
	return nil
}

// withAuditURI stores the URI of the request. It must come before filters that change the URI.
func withAuditURI(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		audit.AddAuditAnnotation(r.Context(), auditURIKey, r.URL.RequestURI())
		next.ServeHTTP(w, r)
	})
}

// AuditScope returns the filter that adds the logical cluster, its canonical path if pathOf returns it, and the
// shard of requests to a cache server to audit events. Users do not know the names of logical clusters, and the
// front-proxy has replaced the path that the client sent.
func AuditScope(c *genericapiserver.Config, pathOf func(logicalcluster.Name) (string, bool)) Filter {
	return Filter{"audit scope", "adds shard, logical cluster and path to audit events", when(c.AuditBackend != nil, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			if cluster, ok := request.ClusterFrom(ctx); ok {
				audit.AddAuditAnnotation(ctx, auditClusterKey, cluster.String())
				if pathOf != nil && !cluster.Wildcard {
					if path, known := pathOf(cluster.Name); known {
						audit.AddAuditAnnotation(ctx, auditPathKey, path)
					}
				}
			}
			if scope := request.ScopeFrom(ctx); scope.VirtualWorkspace != nil {
				audit.AddAuditAnnotation(ctx, auditVirtualWorkspaceKey, scope.Mount.VirtualWorkspacePath(scope.Cluster.Name, scope.VirtualWorkspace.Name)+request.ClusterPath(scope.VirtualWorkspace.In.String()))
			}
			if shard, ok := request.ShardFrom(ctx); ok {
				audit.AddAuditAnnotation(ctx, auditShardKey, shard.String())
			}
			next.ServeHTTP(w, r)
		})
	})}
}

type uriBackend struct{ audit.Backend }

func (b uriBackend) ProcessEvents(events ...*auditinternal.Event) bool {
	events = slices.Clone(events)
	for i, event := range events {
		if uri, ok := event.Annotations[auditURIKey]; ok {
			changed := *event
			changed.RequestURI, changed.Annotations = uri, maps.Clone(event.Annotations)
			delete(changed.Annotations, auditURIKey)
			events[i] = &changed
		}
	}
	return b.Backend.ProcessEvents(events...)
}

// OwnResponses audits the requests to which a forwarding server itself responds, e.g. rejected ones. Other servers
// audit those that it forwards. A nil OwnResponses records nothing.
type OwnResponses struct {
	backend audit.Backend
	policy  audit.PolicyRuleEvaluator
}

// OwnResponse is a request and its response.
type OwnResponse struct {
	// Request is the original request, and Info its request info.
	Request *http.Request
	Info    *apirequest.RequestInfo
	// User is nil if the request was not authenticated.
	User    user.Info
	AuditID string
	// Cluster and Path are the logical cluster, as far as they are known.
	Cluster  logicalcluster.Name
	Path     logicalcluster.Path
	Received time.Time
	Status   metav1.Status
}

// NewOwnResponses opens the backends of o. It returns nil if there are none.
func NewOwnResponses(o *AuditOptions) (*OwnResponses, error) {
	c := &genericapiserver.Config{}
	if err := o.ApplyTo(c); err != nil {
		return nil, err
	}
	if c.AuditBackend == nil {
		return nil, nil //nolint:nilnil // as documented
	}
	return &OwnResponses{backend: c.AuditBackend, policy: c.AuditPolicyRuleEvaluator}, nil
}

// Run runs the backends until ctx is done, and returns when all recorded events have been written.
func (o *OwnResponses) Run(ctx context.Context) error {
	if err := o.backend.Run(ctx.Done()); err != nil {
		return err
	}
	<-ctx.Done()
	o.backend.Shutdown()
	return nil
}

// Record writes an event of the stage ResponseComplete, without content, if the policy requires one.
func (o *OwnResponses) Record(a OwnResponse) {
	if o == nil {
		return
	}
	ctx := audit.WithAuditContext(apirequest.WithRequestInfo(a.Request.Context(), a.Info))
	if a.User != nil {
		ctx = apirequest.WithUser(ctx, a.User)
	}
	attributes, err := apifilters.GetAuthorizerAttributes(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to audit request", "uri", a.Request.URL.RequestURI())
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
	if a.Cluster != "" {
		audit.AddAuditAnnotation(ctx, auditClusterKey, a.Cluster.String())
	}
	if !a.Path.Empty() {
		audit.AddAuditAnnotation(ctx, auditPathKey, a.Path.String())
	}
	if a.Status.Code == http.StatusForbidden {
		audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", "forbid", "authorization.k8s.io/reason", a.Status.Message)
	}
	ac.SetEventResponseStatus(&a.Status)
	ac.ProcessEventStage(ctx, auditinternal.StageResponseComplete)
}
