// Package plaintext escapes texts of tenants and other servers that are printed to a terminal, so
// that they can neither control the terminal nor pretend to be other lines, cells or directions of
// the output.
package plaintext

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape returns a text with everything escaped that is not printed as a character: control
// characters, line breaks and tabs included, format characters that reorder text, and bytes that
// are not UTF-8.
func Escape(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return r == utf8.RuneError || !unicode.IsGraphic(r) }) < 0 {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if unicode.IsGraphic(r) {
			out.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToASCII(r)
		out.WriteString(quoted[1 : len(quoted)-1])
	}
	return out.String()
}

// Fprintf is fmt.Fprintf with arguments that are texts escaped. The format is printed as it is.
func Fprintf(w io.Writer, format string, args ...any) (int, error) {
	return fmt.Fprintf(w, format, escaped(args)...)
}

// Fprintln is fmt.Fprintln with arguments that are texts escaped.
func Fprintln(w io.Writer, args ...any) (int, error) {
	return fmt.Fprintln(w, escaped(args)...)
}

// escaped returns the arguments with the texts among them escaped. Numbers remain numbers.
func escaped(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		switch arg.(type) {
		case bool, int, int32, int64, uint, uint32, uint64, float64:
			out[i] = arg
		default:
			out[i] = Escape(fmt.Sprint(arg))
		}
	}
	return out
}
