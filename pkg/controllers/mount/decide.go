package mount

import (
	"fmt"
	"net/url"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

//reference:limit object | mount: length of the URL | condition `WorkspaceMountReady`
const maxURL = 2048

type problem struct{ reason, message string }

func notFound(format string, args ...any) *problem {
	return &problem{tenancyv1alpha1.MountObjectNotFoundReason, fmt.Sprintf(format, args...)}
}

func notReady(format string, args ...any) *problem {
	return &problem{tenancyv1alpha1.MountObjectNotReadyReason, fmt.Sprintf(format, args...)}
}

func misnamed(ref tenancyv1alpha1.ObjectReference, kind storage.Kind, served bool) *problem {
	switch {
	case !served:
		return notFound("the kind %s of %s is not served in this workspace", ref.Kind, ref.APIVersion)
	case kind.Namespaced && ref.Namespace == "":
		return notFound("the kind %s is namespaced, and spec.mount.ref has no namespace", ref.Kind)
	case !kind.Namespaced && ref.Namespace != "":
		return notFound("the kind %s is not namespaced, and spec.mount.ref has a namespace", ref.Kind)
	default:
		return nil
	}
}

func target(obj *unstructured.Unstructured, ref tenancyv1alpha1.ObjectReference) (string, *problem) {
	text, _, _ := unstructured.NestedString(obj.Object, "status", "URL")
	phase, _, _ := unstructured.NestedString(obj.Object, "status", "phase")
	switch to, err := url.Parse(text); {
	case obj.GetDeletionTimestamp() != nil:
		return "", notReady("the %s %q is being deleted", ref.Kind, ref.Name)
	case phase != string(tenancyv1alpha1.MountPhaseReady):
		return "", notReady("the phase of %s %q is %q", ref.Kind, ref.Name, phase)
	case text == "":
		return "", notReady("the %s %q has no status.URL", ref.Kind, ref.Name)
	case err != nil || len(text) > maxURL || to.Scheme != "https" || to.Hostname() == "" || to.User != nil || to.RawQuery != "" || to.ForceQuery || to.Fragment != "":
		return "", notReady("the status.URL of %s %q is not a URL such as https://host:port/path, without user, query and fragment, of at most %d bytes", ref.Kind, ref.Name, maxURL)
	default:
		return text, nil
	}
}

// mounted returns the Workspace with the status of its mount. While the mount is unavailable, the URL does not change.
func mounted(ws *tenancyv1alpha1.Workspace, url string, p *problem) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	if p != nil {
		ws.Status.Phase = corev1alpha1.LogicalClusterPhaseUnavailable
		conditions.MarkFalse(ws, tenancyv1alpha1.MountConditionReady, p.reason, conditionsv1alpha1.ConditionSeverityError, "%s", p.message)
	} else {
		ws.Status.Phase, ws.Spec.URL = corev1alpha1.LogicalClusterPhaseReady, url
		conditions.MarkTrue(ws, tenancyv1alpha1.MountConditionReady)
	}
	tenancy.SetPhaseLabels(ws, ws.Status.Phase, nil, nil)
	return ws
}
