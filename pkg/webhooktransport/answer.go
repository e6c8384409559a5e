package webhooktransport

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	// AnswerBytes bounds an answer, after decompression. A request may have
	// 3 MiB, and etcd takes half of that of one object: no converted object is as
	// large, nor a patch in base64.
	AnswerBytes = 4 << 20
	// headerBytes bounds the header of an answer, of which nothing is used.
	headerBytes = 64 << 10
)

// answerError says what is wrong with an answer, and nothing of what is in it.
type answerError string

// Error implements error.
func (e answerError) Error() string { return string(e) }

// Operator bounds the answers of the service that c reaches, which the operator
// has named in a file: whoever breaks into it gets neither the memory of our
// servers nor their credentials at another address.
func Operator(c *rest.Config) {
	if c.Proxy == nil {
		c.Proxy = http.ProxyFromEnvironment // what nil means, but for a transport that is shared
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		boundHeaders(next)
		return operator{next}
	})
}

// boundHeaders bounds the header of an answer for a new transport of client-go, whose config has
// a Proxy function: where there is none, client-go shares transports, which nobody may change.
func boundHeaders(transport http.RoundTripper) {
	switch t := transport.(type) {
	case *http.Transport:
		t.MaxResponseHeaderBytes = headerBytes
	case utilnet.RoundTripperWrapper: // follows files of certificates, and CAs
		boundHeaders(t.WrappedRoundTripper())
	}
}

// operator carries calls to services of the operator.
type operator struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o operator) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := o.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if err := final(response); err != nil {
		return nil, err
	}
	data, err := readAnswer(response.Body)
	if err != nil {
		return nil, err
	}
	replace(response, data)
	return response, nil
}

// final returns an error for what is not an answer to the request: a redirect,
// or another protocol.
func final(response *http.Response) error {
	switch code := response.StatusCode; {
	case code >= 300 && code < 400:
		return answerError(fmt.Sprintf("the webhook answered with a redirect (%d), and redirects are not followed: use the URL that it redirects to", code))
	case code < 200:
		return answerError(fmt.Sprintf("the webhook answered with status %d instead of a result", code))
	default:
		return nil
	}
}

// readAnswer reads an answer, unless it is too large.
func readAnswer(body io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, AnswerBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > AnswerBytes {
		return nil, answerError(fmt.Sprintf("the webhook answered with more than %d bytes", AnswerBytes))
	}
	return data, nil
}

// replace gives the response another body.
func replace(response *http.Response, data []byte) {
	response.Body = io.NopCloser(bytes.NewReader(data))
	response.ContentLength = int64(len(data))
}
