package serving

import (
	"errors"
	"fmt"
	"maps"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/spf13/pflag"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"

	"github.com/shardplane/shardplane/pkg/request"
)

// Annotations of audit events, beside those of upstream.
const (
	// auditViewKey carries the view that the request came through, as a URL path with
	// names of logical clusters.
	auditViewKey = "shardplane.io/view"
	// auditClusterKey carries the logical cluster.
	auditClusterKey = logicalcluster.AnnotationKey
	// auditShardKey carries the shard whose objects a cache server is asked for.
	auditShardKey = request.ShardAnnotation
	// auditPathKey carries the canonical path of the logical cluster.
	auditPathKey = core.LogicalClusterPathAnnotationKey
	// auditURIKey carries the URI as the client sent it to this server, until
	// the event leaves for a backend: there it replaces the event's own, which
	// has lost the logical cluster.
	auditURIKey = "shardplane.io/request-uri"
)

// AuditOptions are kube-apiserver's, a policy and backends that write to a log
// or call a webhook, and a bound on what waits for the webhook.
type AuditOptions struct {
	options.AuditOptions

	// WebhookBufferBytes bounds the events, in bytes, that wait for the webhook or
	// are on their way to it, in the mode batch.
	WebhookBufferBytes int64
}

// NewAuditOptions returns kube-apiserver's defaults: no policy, no auditing.
func NewAuditOptions() AuditOptions {
	return AuditOptions{AuditOptions: *options.NewAuditOptions(), WebhookBufferBytes: 128 << 20}
}

// AddFlags adds the flags of o to fs.
func (o *AuditOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.PolicyFile, "audit-policy-file", o.PolicyFile, "Audit policy (audit.k8s.io/v1) that says which requests are recorded, and how much of them")
	log, webhook := &o.LogOptions, &o.WebhookOptions
	fs.StringVar(&log.Path, "audit-log-path", log.Path, "Log file for audit events, in JSON; '-' is the standard output")
	fs.IntVar(&log.MaxAge, "audit-log-maxage", log.MaxAge, "Number of days to keep rotated log files; 0 keeps them")
	fs.IntVar(&log.MaxBackups, "audit-log-maxbackup", log.MaxBackups, "Number of rotated log files to keep; 0 keeps all")
	fs.IntVar(&log.MaxSize, "audit-log-maxsize", log.MaxSize, "Size in megabytes at which the log file is rotated")
	fs.StringVar(&webhook.ConfigFile, "audit-webhook-config-file", webhook.ConfigFile, "Kubeconfig file of the webhook that receives audit events")
	fs.StringVar(&webhook.BatchOptions.Mode, "audit-webhook-mode", webhook.BatchOptions.Mode, "When the webhook receives events: batch (later, several together), blocking (before the response), or blocking-strict (before the response, and before the request is processed)")
	fs.DurationVar(&webhook.InitialBackoff, "audit-webhook-initial-backoff", webhook.InitialBackoff, "Time before the first retry of a failed request to the webhook")
	fs.BoolVar(&webhook.TruncateOptions.Enabled, "audit-webhook-truncate-enabled", webhook.TruncateOptions.Enabled, "Whether the content of events above 100 KiB is left out")
	batch := &webhook.BatchOptions.BatchConfig
	fs.IntVar(&batch.BufferSize, "audit-webhook-batch-buffer-size", batch.BufferSize, "Number of events that may wait for the webhook or be on their way to it. What does not fit is lost, and counted. Only used in batch mode.")
	fs.IntVar(&batch.MaxBatchSize, "audit-webhook-batch-max-size", batch.MaxBatchSize, "Maximum number of events in one request to the webhook. Only used in batch mode.")
	fs.DurationVar(&batch.MaxBatchWait, "audit-webhook-batch-max-wait", batch.MaxBatchWait, "Maximum time that an event waits for others. Only used in batch mode.")
	fs.Int64Var(&o.WebhookBufferBytes, flagAuditBufferBytes, o.WebhookBufferBytes,
		"How many bytes of events may wait for the webhook or be on their way to it. What does not fit is lost, and counted. Only used in batch mode.")
}

// Validate returns what is wrong with o.
func (o *AuditOptions) Validate() []error {
	errs := o.AuditOptions.Validate()
	if o.WebhookBufferBytes <= 0 {
		errs = append(errs, fmt.Errorf("--%s is %d: it must be 1 or more", flagAuditBufferBytes, o.WebhookBufferBytes))
	}
	if o.PolicyFile == "" && (o.LogOptions.Path != "" || o.WebhookOptions.ConfigFile != "") {
		errs = append(errs, errors.New("--audit-policy-file is required with --audit-log-path and --audit-webhook-config-file: without a policy no event is recorded"))
	}
	if o.PolicyFile != "" && o.LogOptions.Path == "" && o.WebhookOptions.ConfigFile == "" {
		errs = append(errs, errors.New("--audit-policy-file needs --audit-log-path, --audit-webhook-config-file or both: there is nowhere to record events"))
	}
	return errs
}

// ApplyTo opens the backends of o for the server that c configures, which runs
// them.
func (o *AuditOptions) ApplyTo(c *genericapiserver.Config) error {
	if o.PolicyFile != "" {
		// Read twice, to be able to say whose fault it is.
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

// withAuditURI remembers the URI of the request for its audit events. It stands
// before whatever takes parts off the URI.
func withAuditURI(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		audit.AddAuditAnnotation(r.Context(), auditURIKey, r.URL.RequestURI())
		next.ServeHTTP(w, r)
	})
}

// AuditScope returns the filter that puts the logical cluster, and the shard at
// a cache server, into the audit events of requests to the server of c. It stands
// behind what finds them. pathOf, if it is not nil, gives the canonical path of a
// logical cluster, where it is known: people know workspaces by it, and names say
// nothing to them. The front-proxy has resolved the path that the client wrote.
func AuditScope(c *genericapiserver.Config, pathOf func(logicalcluster.Name) (string, bool)) Filter {
	return Filter{"audit scope", "shard, logical cluster and path, for audit events", when(c.AuditBackend != nil, func(next http.Handler) http.Handler {
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
				audit.AddAuditAnnotation(ctx, auditViewKey, scope.Mount.VirtualWorkspacePath(scope.Cluster.Name, scope.VirtualWorkspace.Name)+request.ClusterPath(scope.VirtualWorkspace.In.String()))
			}
			if shard, ok := request.ShardFrom(ctx); ok {
				audit.AddAuditAnnotation(ctx, auditShardKey, shard.String())
			}
			next.ServeHTTP(w, r)
		})
	})}
}

// uriBackend gives events the URI that the client sent.
type uriBackend struct{ audit.Backend }

// ProcessEvents implements audit.Sink. The events are the request's own, which
// later stages use again, so they stay as they are.
func (b uriBackend) ProcessEvents(events ...*auditinternal.Event) bool {
	full := make([]*auditinternal.Event, len(events))
	for i, event := range events {
		full[i] = withOriginalURI(event)
	}
	return b.Backend.ProcessEvents(full...)
}

func withOriginalURI(event *auditinternal.Event) *auditinternal.Event {
	uri, ok := event.Annotations[auditURIKey]
	if !ok {
		return event
	}
	full := *event
	full.RequestURI = uri
	full.Annotations = maps.Clone(event.Annotations)
	delete(full.Annotations, auditURIKey)
	return &full
}
