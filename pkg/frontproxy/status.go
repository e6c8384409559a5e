package frontproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/authz"
)

// retrySoon is the Retry-After of answers that will change by themselves.
const retrySoon = 1

// warningCode is the code of warnings that are shown to people.
const warningCode = 299

// writeStatus answers with an error as Kubernetes clients expect it. It is JSON
// always: every client takes that for errors.
func writeStatus(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if rec := recordOf(w); rec != nil {
		rec.status = status
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-cache, private")
	header.Set("X-Content-Type-Options", "nosniff")
	if hidden := hiddenMessage(&status); hidden != "" {
		if warning, err := utilnet.NewWarningHeader(warningCode, "-", hidden); err == nil {
			header.Set("Warning", warning)
		}
	}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		header.Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	body, marshalErr := json.Marshal(status)
	if marshalErr != nil {
		http.Error(w, status.Message, int(status.Code))
		return
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(body)
}

// hiddenMessage returns what kubectl would not show its user, and does if it is a warning. It does not read
// the errors of requests that are not for a resource, by which it looks up what is served, and prints
// "unknown" or "the server rejected our request for an unknown reason". For whoami it has a text of its own.
func hiddenMessage(status *metav1.Status) string {
	if status.Details != nil && status.Details.Kind != "" && status.Details.Kind != "selfsubjectreviews" {
		return ""
	}
	switch status.Reason {
	case metav1.StatusReasonForbidden:
		if strings.Contains(status.Message, authz.NotPermitted) {
			return authz.NotPermittedReason
		}
		return ""
	case metav1.StatusReasonBadRequest, metav1.StatusReasonMethodNotAllowed:
		return status.Message
	case metav1.StatusReasonServiceUnavailable:
		if status.Details == nil || status.Details.RetryAfterSeconds == 0 {
			return status.Message
		}
		return ""
	default:
		return ""
	}
}

// forbidden is the answer to r, whose path is rest below a logical cluster, if
// there is no such logical cluster or the user has no access to it. It is the
// same for both, and the shards' own.
func forbidden(r *http.Request, rest string) *apierrors.StatusError {
	info, err := requestInfo(r, rest)
	if err != nil {
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(authz.NotPermittedReason))
	}
	attributes, err := filters.GetAuthorizerAttributes(genericapirequest.WithRequestInfo(r.Context(), info))
	if err != nil {
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(authz.NotPermittedReason))
	}
	return responsewriters.ForbiddenStatusError(attributes, authz.NotPermittedReason)
}

// unavailable is the answer to what will work by itself before long.
func unavailable(format string, args ...any) *apierrors.StatusError {
	return statusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, retrySoon, format, args...)
}

func statusError(code int32, reason metav1.StatusReason, retryAfter int, format string, args ...any) *apierrors.StatusError {
	status := metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}
	if retryAfter > 0 {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(retryAfter)}
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// unauthorized answers requests without valid credentials.
var unauthorized = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 {
		// Connections of those who may not enter are not kept: HTTP/2 ones cost much.
		w.Header().Set("Connection", "close")
	}
	writeStatus(w, apierrors.NewUnauthorized("Unauthorized"))
})

// notMapped answers requests for paths that lead nowhere.
var notMapped = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	writeStatus(w, statusError(http.StatusNotFound, metav1.StatusReasonNotFound, 0,
		"the front-proxy serves nothing at %q: use /clusters/<path or name>/…", r.URL.Path))
})
