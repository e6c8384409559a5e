package merge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// PartialHeader has, with the value PartialAllow, a request answered without shards
	// that do not answer.
	PartialHeader = "X-Shardplane-Partial"
	// PartialAllow is the one value of PartialHeader that means something.
	PartialAllow = "allow"
	// CauseShardUnavailable is the type of the causes of an answer that is missing shards:
	// the field of each is the shard's name.
	CauseShardUnavailable metav1.CauseType = "ShardUnavailable"
	// retrySeconds is the Retry-After of answers that will change by themselves.
	retrySeconds = 1
	// maxErrorBytes is how much of a shard's error is read.
	maxErrorBytes = 64 << 10
)

// missing are shards that do not answer, and why not.
type missing map[string]error

// names returns the shards in order.
func (m missing) names() []string { return slices.Sorted(maps.Keys(m)) }

// status is the answer where all shards are needed.
func (m missing) status() *apierrors.StatusError {
	names := m.names()
	err := apierrors.NewServiceUnavailable("shards that do not answer: " + strings.Join(names, ", ") + ". Try again, or send " + PartialHeader + ": " + PartialAllow + " to go without them") //nolint:forbidigo // with a delay, see below
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retrySeconds}
	for _, name := range names {
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: CauseShardUnavailable, Field: name, Message: m[name].Error(),
		})
	}
	return err
}

// expired is the answer to a version from which there is no going on.
func expired(format string, args ...any) *apierrors.StatusError {
	return apierrors.NewResourceExpired(fmt.Sprintf(format, args...))
}

// invalidOption is the answer to options that do not go together.
func invalidOption(name, why string) *apierrors.StatusError {
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", field.ErrorList{field.Forbidden(field.NewPath(name), why)})
}

// errAway says that a shard did not answer, or could not.
var errAway = errors.New("the shard does not answer")

// check returns nil for an answer of a shard that can be merged. Else it is the shard's own
// error, or errAway; the body is closed.
func check(res *http.Response) error {
	if res.StatusCode == http.StatusOK {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	if err != nil {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err != nil || status.Kind != "Status" || status.APIVersion != "v1" || status.Code == 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Code: int32(res.StatusCode), Reason: metav1.StatusReasonUnknown, Message: string(body)} //nolint:gosec // three digits
	}
	return judge(&apierrors.StatusError{ErrStatus: status})
}

// judge tells a shard that cannot answer now from one that has answered with an error.
func judge(err *apierrors.StatusError) error {
	switch err.ErrStatus.Code {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %s", errAway, err.ErrStatus.Message)
	}
	return err
}

// statusOf returns the answer of a shard that err is, or nil.
func statusOf(err error) *apierrors.StatusError {
	status, _ := errors.AsType[*apierrors.StatusError](err)
	return status
}

func isCode(err error, code int32) bool {
	status := statusOf(err)
	return status != nil && status.ErrStatus.Code == code
}
