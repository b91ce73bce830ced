import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintStream;
import java.sql.*;
import java.util.*;
import java.util.concurrent.SynchronousQueue;

/**
 * The JVM's side of the sink `jdbc`: answers JSON questions on standard input, one at a time, with a
 * line of JSON each on standard output. What is asked when, and what an error means, Python decides.
 *
 * Compiled at its start by Janino, which comes with Spark and knows no lambdas and no inference. It
 * ends at the end of its input, also when a driver hangs, and closes its connection if it can.
 */
public class Jdbc implements Runnable {
    private static final ObjectMapper JSON = new ObjectMapper(JsonFactory.builder()
        .streamReadConstraints(
            StreamReadConstraints.builder().maxStringLength(Integer.MAX_VALUE).build())
        .build());

    private static final long CLOSING_MS = 2000;

    private final SynchronousQueue questions = new SynchronousQueue();
    private final PrintStream answers;
    private volatile Connection connection;
    private int limitSeconds;

    private Jdbc(PrintStream answers) {
        this.answers = answers;
    }

    public static void main(String[] arguments) throws Exception {
        final Jdbc jdbc = new Jdbc(System.out);
        System.setOut(System.err);  // drivers print
        Thread worker = new Thread(jdbc);
        worker.setDaemon(true);
        worker.start();
        JsonParser parser = JSON.getFactory().createParser(System.in);
        while (parser.nextToken() != null) {
            jdbc.questions.put((JsonNode) JSON.readTree(parser));
        }
        Thread closing = new Thread() {
            public void run() {
                jdbc.close();
            }
        };
        closing.setDaemon(true);
        closing.start();
        closing.join(CLOSING_MS);
        Runtime.getRuntime().halt(0);
    }

    public void run() {
        say(JSON.createObjectNode());
        while (true) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer((JsonNode) questions.take(), answer);
            } catch (SQLException error) {
                describe(error, answer);
            } catch (ClassNotFoundException error) {
                answer.put("error", "no jar has the class " + error.getMessage());
                answer.put("kind", "statement");
            } catch (Exception error) {
                answer.put("error", error.toString());
            } catch (LinkageError error) {
                answer.put("error", error.toString());
            }
            say(answer);
        }
    }

    private void say(ObjectNode answer) {
        answers.println(answer.toString());
        answers.flush();
    }

    private void answer(JsonNode question, ObjectNode answer) throws Exception {
        String asked = question.get("ask").asText();
        if (asked.equals("connect")) {
            connect(question);
            answer.put("product", connection.getMetaData().getDatabaseProductName());
            answer.put("quote", connection.getMetaData().getIdentifierQuoteString().trim());
        } else if (asked.equals("key")) {
            key(question.get("table"), answer);
        } else if (asked.equals("execute")) {
            execute(question.get("sql").asText());
        } else {
            answer.put("there", insert(question));
        }
    }

    private void connect(JsonNode question) throws Exception {
        close();
        JsonNode driver = question.get("driver");
        if (!driver.isNull()) {
            Class.forName(driver.asText());
        }
        Properties properties = new Properties();
        for (Iterator names = question.get("properties").fieldNames(); names.hasNext();) {
            String name = (String) names.next();
            properties.setProperty(name, question.get("properties").get(name).asText());
        }
        limitSeconds = question.get("limit_s").asInt();
        String url = question.get("url").asText();
        DriverManager.setLoginTimeout(limitSeconds);
        if (!hasDriver(url)) {
            throw new SQLSyntaxErrorException("no jar has a driver for this url");
        }
        connection = DriverManager.getConnection(url, properties);
        connection.setAutoCommit(false);
    }

    private static boolean hasDriver(String url) {
        try {
            return DriverManager.getDriver(url) != null;
        } catch (SQLException error) {
            return false;
        }
    }

    private void close() {
        try {
            if (connection != null) {
                connection.close();
            }
        } catch (SQLException error) {
            System.err.println("closing: " + error);  // it is given up in any case
        }
        connection = null;
    }

    /** The columns of the table's primary key; none where there is no table. */
    private void key(JsonNode parts, ObjectNode answer) throws SQLException {
        DatabaseMetaData about = connection.getMetaData();
        String table = at(parts, parts.size() - 1).asText();
        String owner = parts.size() > 1 ? at(parts, 0).asText() : null;
        boolean hasSchemas = about.supportsSchemasInTableDefinitions();
        String catalog = owner != null && !hasSchemas ? owner : connection.getCatalog();
        String schema = !hasSchemas ? null : owner != null ? owner : connection.getSchema();
        answer.put("exists", false);
        String escape = about.getSearchStringEscape();
        ResultSet tables = about.getTables(
            catalog, literal(schema, escape), literal(table, escape), null);
        while (tables.next()) {
            answer.put("exists", true);
        }
        tables.close();
        ResultSet columns = about.getPrimaryKeys(catalog, schema, table);
        answer.putArray("key");
        while (columns.next()) {
            answer.withArray("key").add(columns.getString("COLUMN_NAME"));
        }
        columns.close();
        connection.commit();
    }

    /** A name as a pattern for itself. */
    private static String literal(String name, String escape) {
        if (name == null || escape == null || escape.isEmpty()) {
            return name;
        }
        return name.replace(escape, escape + escape)
            .replace("_", escape + "_").replace("%", escape + "%");
    }

    private void execute(String sql) throws SQLException {
        Statement statement = connection.createStatement();
        try {
            limit(statement);
            statement.execute(sql);
            connection.commit();
        } catch (SQLException error) {
            connection.rollback();
            throw error;
        } finally {
            statement.close();
        }
    }

    /**
     * All rows in one transaction, but for those whose key is there; returns how many those are.
     *
     * What is there is looked up when the key refuses something, for that is rare. Who else writes
     * the same rows meanwhile is found at the next turn; a refusal that is not about rows that are
     * there now is about something else.
     */
    private int insert(JsonNode question) throws SQLException {
        Set there = new HashSet();
        while (true) {
            try {
                write(question, there);
                connection.commit();
                return there.size();
            } catch (SQLException error) {
                connection.rollback();
                int before = there.size();
                if (!isConstraint(error)) {
                    throw error;
                }
                there = look(question);
                if (there.size() <= before) {
                    throw error;
                }
            }
        }
    }

    private void write(JsonNode question, Set there) throws SQLException {
        String[] kinds = question.get("kinds").asText().split(" ");
        int place = question.get("offset_at").asInt();
        PreparedStatement statement = connection.prepareStatement(question.get("sql").asText());
        try {
            limit(statement);
            for (Iterator rows = question.get("rows").elements(); rows.hasNext();) {
                JsonNode row = (JsonNode) rows.next();
                if (!there.contains(Long.valueOf(at(row, place).asLong()))) {
                    for (int i = 0; i < kinds.length; i++) {
                        set(statement, i + 1, kinds[i], at(row, i));
                    }
                    statement.addBatch();
                }
            }
            statement.executeBatch();
        } finally {
            statement.close();
        }
    }

    private static void set(PreparedStatement statement, int place, String kind, JsonNode value)
            throws SQLException {
        if (kind.equals("text")) {
            if (value.isNull()) {
                statement.setString(place, null);
            } else {
                statement.setString(place, value.asText());
            }
        } else if (kind.equals("bytes")) {
            if (value.isNull()) {
                statement.setBytes(place, null);
            } else {
                statement.setBytes(place, Base64.getDecoder().decode(value.asText()));
            }
        } else if (kind.equals("time")) {
            long micros = Math.floorDiv(value.asLong(), 1000L);
            Timestamp time = new Timestamp(Math.floorDiv(micros, 1000L));
            time.setNanos((int) Math.floorMod(micros, 1000000L) * 1000);
            statement.setTimestamp(place, time);
        } else if (value.isNull()) {
            statement.setNull(place, Types.INTEGER);
        } else if (kind.equals("long")) {
            statement.setLong(place, value.asLong());
        } else {
            statement.setInt(place, value.asInt());
        }
    }

    /** Janino mistakes `get(int)` for that of an interface. */
    private static JsonNode at(JsonNode array, int index) {
        return (JsonNode) array.get(index);
    }

    /** The offsets, of those of the rows, that the table has. */
    private Set look(JsonNode question) throws SQLException {
        int place = question.get("offset_at").asInt();
        Set asked = new HashSet();
        for (Iterator rows = question.get("rows").elements(); rows.hasNext();) {
            asked.add(Long.valueOf(at((JsonNode) rows.next(), place).asLong()));
        }
        JsonNode first = at(question.get("rows"), 0);
        PreparedStatement statement = connection.prepareStatement(question.get("look").asText());
        Set found = new HashSet();
        try {
            limit(statement);
            statement.setFetchSize(10000);
            statement.setString(1, at(first, 0).asText());
            statement.setString(2, at(first, 1).asText());
            statement.setInt(3, at(first, 2).asInt());
            statement.setLong(4, ((Long) Collections.min(asked)).longValue());
            statement.setLong(5, ((Long) Collections.max(asked)).longValue());
            ResultSet offsets = statement.executeQuery();
            while (offsets.next()) {
                found.add(Long.valueOf(offsets.getLong(1)));
            }
        } finally {
            statement.close();
            connection.rollback();
        }
        found.retainAll(asked);
        return found;
    }

    private void limit(Statement statement) throws SQLException {
        try {
            statement.setQueryTimeout(limitSeconds);
        } catch (SQLFeatureNotSupportedException error) {
            limitSeconds = 0;  // the caller has a limit, too
        }
    }

    private static boolean isConstraint(SQLException error) {
        SQLException cause = cause(error);
        String state = cause.getSQLState();
        return cause instanceof SQLIntegrityConstraintViolationException
            || (state != null && state.startsWith("23"));
    }

    /** Of an error of a batch, the error of the row that it is about. */
    private static SQLException cause(SQLException error) {
        SQLException found = error;
        while (found instanceof BatchUpdateException) {
            SQLException next = found.getNextException();
            if (next == null && found.getCause() instanceof SQLException) {
                next = (SQLException) found.getCause();
            }
            if (next == null) {
                return found;
            }
            found = next;
        }
        return found;
    }

    private static void describe(SQLException error, ObjectNode answer) {
        SQLException cause = cause(error);
        answer.put("error", String.valueOf(cause.getMessage()));
        answer.put("state", cause.getSQLState());
        answer.put("kind", kind(cause));
    }

    /** The category of JDBC 4, by which a driver says what its own codes mean. */
    private static String kind(SQLException error) {
        if (error instanceof SQLDataException) {
            return "data";
        }
        if (error instanceof SQLIntegrityConstraintViolationException) {
            return "constraint";
        }
        if (error instanceof SQLSyntaxErrorException
                || error instanceof SQLFeatureNotSupportedException) {
            return "statement";
        }
        if (error instanceof SQLInvalidAuthorizationSpecException) {
            return "login";
        }
        if (error instanceof SQLTransientException || error instanceof SQLRecoverableException) {
            return "passing";
        }
        return "other";
    }
}
