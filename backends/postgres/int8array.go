package postgres

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// int8Array is the codec of bigint[] that encodes a []int64 without an allocation for each element. Each ack and each claim
// sends several.
type int8Array struct{ pgtype.Codec }

// encodeInt8Arrays registers int8Array with a connection.
func encodeInt8Arrays(c *pgx.Conn) {
	if t, ok := c.TypeMap().TypeForOID(pgtype.Int8ArrayOID); ok {
		c.TypeMap().RegisterType(&pgtype.Type{Name: t.Name, OID: t.OID, Codec: int8Array{t.Codec}})
	}
}

// PlanEncode implements pgtype.Codec.
func (i int8Array) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.([]int64); ok && format == pgtype.BinaryFormatCode {
		return i
	}
	return i.Codec.PlanEncode(m, oid, format, value)
}

// Encode implements pgtype.EncodePlan.
func (int8Array) Encode(value any, buf []byte) ([]byte, error) {
	all := value.([]int64)
	if all == nil {
		return nil, nil
	}
	put := func(n int) { buf = binary.BigEndian.AppendUint32(buf, uint32(n)) }
	put(1) // dimensions
	put(0) // there are no NULLs
	put(pgtype.Int8OID)
	put(len(all))
	put(1) // the index of the first element
	for _, n := range all {
		put(8) // bytes
		buf = binary.BigEndian.AppendUint64(buf, uint64(n))
	}
	return buf, nil
}
